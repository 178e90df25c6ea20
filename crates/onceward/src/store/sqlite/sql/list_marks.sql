SELECT name, position, updated_at, seal, value FROM marks
WHERE tenant = ?1 AND name >= ?2
ORDER BY name LIMIT ?3
