INSERT INTO outcomes (id, tenant, body) VALUES (?1, ?2, ?3)
