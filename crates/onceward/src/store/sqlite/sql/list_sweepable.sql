-- What the sweep has to look at, longest due first, after the place (?2, ?3, ?4, ?5).
SELECT state, rev, fence, last_fence, token, fingerprint, attempt, priority,
    created_at, updated_at, due_at, expires_at, sweep_at, outcome, has_payload,
    rest, tenant, kind, name
FROM records
WHERE sweep_at <= ?1 AND sweep_at >= ?2
    AND (sweep_at > ?2 OR (tenant, kind, name) > (?3, ?4, ?5))
ORDER BY sweep_at, tenant, kind, name LIMIT ?6
