-- All tenants' marks, as list_marks.sql lists those of one. A page is of one snapshot; the cursor is
-- tenant and name, which closes the race of offsets with marks that come in between.
WITH places AS MATERIALIZED (
    SELECT array_agg(tenant) AS tenants, array_agg(name) AS names
    FROM mark_places($1, $2, $3, $4)
)
SELECT found.*
FROM places CROSS JOIN LATERAL marks_at(places.tenants, places.names) AS found
ORDER BY found.place
