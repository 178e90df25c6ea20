-- One tenant's marks, names from ?2.
SELECT name, position, updated_at, seal, value, tenant FROM marks
WHERE tenant = ?1 AND name >= ?2
ORDER BY name LIMIT ?3
