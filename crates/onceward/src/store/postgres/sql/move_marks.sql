-- Marks whose value stays. Otherwise as put_marks.sql: the maximum closes the race of a late, lower
-- position with a higher one.
INSERT INTO marks AS m (tenant, name, position, seal, updated_at)
SELECT new.*, $5::bigint
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bytea[]) AS new
ON CONFLICT (tenant, name) DO UPDATE SET
    position = GREATEST(m.position, EXCLUDED.position),
    seal = EXCLUDED.seal,
    updated_at = EXCLUDED.updated_at
