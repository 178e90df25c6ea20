-- Every tenant's marks behind the place (?1, ?2), names that start with ?3.
SELECT name, position, updated_at, seal, value, tenant FROM marks
WHERE (tenant, name) > (?1, ?2) AND substr(name, 1, length(?3)) = ?3
ORDER BY tenant, name LIMIT ?4
