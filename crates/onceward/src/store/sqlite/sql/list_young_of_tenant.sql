-- One kind of one tenant's young records, names from ?3 up to but not including ?4: looks through
-- all of them.
SELECT r.state, r.rev, r.fence, r.last_fence, r.token, r.fingerprint, r.attempt, r.priority,
    r.created_at, r.updated_at, r.due_at, r.expires_at, r.sweep_at, r.outcome, r.has_payload,
    r.rest, r.tenant, r.kind, r.name
FROM records r
WHERE r.id > ?7 AND r.tenant = ?1 AND r.kind = ?2 AND r.name >= ?3 AND r.name < ?4
    AND (?5 IS NULL OR r.state = ?5)
ORDER BY r.name LIMIT ?6
