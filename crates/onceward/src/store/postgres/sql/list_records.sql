-- All tenants' records in the order of the key, from where the cursor points. A page is of one
-- snapshot; the cursor is a key, which closes the race of offsets with rows that come and go.
WITH places AS MATERIALIZED (
    SELECT array_agg(tenant) AS tenants, array_agg(kind) AS kinds, array_agg(name) AS names
    FROM record_places($1, $2, $3, $4, $5, $6)
)
SELECT found.*
FROM places CROSS JOIN LATERAL records_at(places.tenants, places.kinds, places.names) AS found
ORDER BY found.place
