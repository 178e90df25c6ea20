-- Jobs that may be taken. Closes no race: two takers see the same job, and its rev lets one have
-- it.
WITH places AS MATERIALIZED (
    SELECT array_agg(tenant) AS tenants, array_agg(kind) AS kinds, array_agg(name) AS names
    FROM due_places($1, $2, $3, $4, $5, $6, $7)
)
SELECT found.*
FROM places CROSS JOIN LATERAL records_at(places.tenants, places.kinds, places.names) AS found
ORDER BY found.place
