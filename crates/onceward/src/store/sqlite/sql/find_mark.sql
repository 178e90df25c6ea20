SELECT position, updated_at, seal, value FROM marks WHERE tenant = ?1 AND name = ?2
