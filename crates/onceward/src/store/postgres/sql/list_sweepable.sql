-- Records that the sweep has to look at. Closes no race: each is swept under its rev.
WITH places AS MATERIALIZED (
    SELECT array_agg(tenant) AS tenants, array_agg(kind) AS kinds, array_agg(name) AS names
    FROM sweep_places($1, $2, $3, $4, $5, $6)
)
SELECT found.*
FROM places CROSS JOIN LATERAL records_at(places.tenants, places.kinds, places.names) AS found
ORDER BY found.place
