-- Marks of a tenant in the order of their names. The cursor is a name, which closes the race of
-- offsets with marks that come in between.
SELECT
    tenant, NULL::smallint, name, NULL::smallint, NULL::bytea, NULL::bigint, NULL::bigint,
    NULL::bigint, NULL::bytea, NULL::bigint, NULL::smallint, NULL::bigint, NULL::bigint,
    NULL::bigint, NULL::bigint, NULL::bigint, NULL::bytea, NULL::boolean, NULL::bytea,
    NULL::bigint, NULL::bytea, NULL::bytea, NULL::bytea,
    position, updated_at, value, digest, seal
FROM marks
WHERE tenant = $1 AND name >= $2 AND ($3::text IS NULL OR name > $3)
    AND ($4::text IS NULL OR name < $4)
ORDER BY name
LIMIT $5
