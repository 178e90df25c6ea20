-- Every tenant's young records, in the order of names: looks through all of them.
SELECT r.state, r.rev, r.fence, r.last_fence, r.token, r.fingerprint, r.attempt, r.priority,
    r.created_at, r.updated_at, r.due_at, r.expires_at, r.sweep_at, r.outcome, r.has_payload,
    r.rest, r.tenant, r.kind, r.name
FROM records r
WHERE r.id > ?7 AND (r.tenant, r.kind, r.name) > (?1, ?2, ?3)
    AND (?4 IS NULL OR r.state = ?4)
    AND (?5 IS NULL OR substr(r.name, 1, length(?5)) = ?5)
ORDER BY r.tenant, r.kind, r.name LIMIT ?6
