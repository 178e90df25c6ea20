INSERT INTO payloads (id, tenant, seal, body) VALUES (?1, ?2, ?3, ?4)
