-- Brings a young record's name to the index. A row that was deleted meanwhile brings nothing.
INSERT INTO names (tenant, kind, name, id)
SELECT tenant, kind, name, id FROM records WHERE id = ?1
ON CONFLICT DO UPDATE SET id = excluded.id WHERE id <> excluded.id
