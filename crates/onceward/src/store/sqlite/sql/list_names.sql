-- Names in the index behind the place (?1, ?2, ?3), in their order.
SELECT tenant, kind, name, id FROM names
WHERE (tenant, kind, name) > (?1, ?2, ?3)
ORDER BY tenant, kind, name LIMIT ?4
