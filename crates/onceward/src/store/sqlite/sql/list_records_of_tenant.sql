-- One kind of one tenant's records, names from ?3 up to but not including ?4.
SELECT state, rev, fence, last_fence, token, fingerprint, attempt, priority,
    created_at, updated_at, due_at, expires_at, sweep_at, outcome, has_payload,
    rest, tenant, kind, name
FROM records
WHERE tenant = ?1 AND kind = ?2 AND name >= ?3 AND name < ?4
    AND (?5 IS NULL OR state = ?5)
ORDER BY name LIMIT ?6
