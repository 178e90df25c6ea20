-- Brings a young record's name to the index. A name that came again has a new row.
INSERT INTO names (tenant, kind, name, id) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT DO UPDATE SET id = excluded.id WHERE id <> excluded.id
