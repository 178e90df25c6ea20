-- The position was looked at in this transaction and is never below the one that is there.
INSERT INTO marks (tenant, name, position, updated_at, seal, value)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (tenant, name) DO UPDATE SET
    position = excluded.position, updated_at = excluded.updated_at,
    seal = excluded.seal, value = excluded.value
