-- Jobs of one priority, longest due first, after the place (?4, ?5, ?6, ?7).
SELECT state, rev, fence, last_fence, token, fingerprint, attempt, priority,
    created_at, updated_at, due_at, expires_at, sweep_at, outcome, has_payload,
    rest, tenant, kind, name, payload_id, id
FROM records
WHERE queue = ?1 AND priority = ?2 AND due_at <= ?3 AND due_at >= ?4
    AND (due_at > ?4 OR (tenant, kind, name) > (?5, ?6, ?7))
ORDER BY due_at, tenant, kind, name LIMIT ?8
