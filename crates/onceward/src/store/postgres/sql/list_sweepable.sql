-- Records that the sweep has to look at. Closes no race: each is swept under its rev.
SELECT
    r.tenant, r.kind, r.name, r.state, r.fingerprint, r.rev, r.fence, r.last_fence, r.token,
    r.attempt, r.priority, r.created_at, r.updated_at, r.due_at, r.expires_at, r.sweep_at,
    r.outcome, r.has_payload, r.rest
FROM records AS r
WHERE r.sweep_at IS NOT NULL AND r.sweep_at <= $5
    AND (r.sweep_at, r.tenant, r.kind, r.name) > ($1, $2, $3, $4)
ORDER BY r.sweep_at, r.tenant, r.kind, r.name
LIMIT $6
