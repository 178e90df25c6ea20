-- Every tenant's records that are not young, in the order of names.
SELECT r.state, r.rev, r.fence, r.last_fence, r.token, r.fingerprint, r.attempt, r.priority,
    r.created_at, r.updated_at, r.due_at, r.expires_at, r.sweep_at, r.outcome, r.has_payload,
    r.rest, r.tenant, r.kind, r.name
FROM names n
JOIN records r ON r.id = n.id
WHERE (n.tenant, n.kind, n.name) > (?1, ?2, ?3)
    AND (?4 IS NULL OR r.state = ?4)
    AND (?5 IS NULL OR substr(n.name, 1, length(?5)) = ?5)
ORDER BY n.tenant, n.kind, n.name LIMIT ?6
