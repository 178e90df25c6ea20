-- Every tenant's records, in the order of the UNIQUE index.
SELECT state, rev, fence, last_fence, token, fingerprint, attempt, priority,
    created_at, updated_at, due_at, expires_at, sweep_at, outcome, has_payload,
    rest, tenant, kind, name
FROM records
WHERE (tenant, kind, name) > (?1, ?2, ?3)
    AND (?4 IS NULL OR state = ?4)
    AND (?5 IS NULL OR substr(name, 1, length(?5)) = ?5)
ORDER BY tenant, kind, name LIMIT ?6
