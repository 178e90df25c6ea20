-- One kind of one tenant's records that are not young, names from ?3 up to but not including ?4.
SELECT r.state, r.rev, r.fence, r.last_fence, r.token, r.fingerprint, r.attempt, r.priority,
    r.created_at, r.updated_at, r.due_at, r.expires_at, r.sweep_at, r.outcome, r.has_payload,
    r.rest, r.tenant, r.kind, r.name
FROM names n
JOIN records r ON r.id = n.id
WHERE n.tenant = ?1 AND n.kind = ?2 AND n.name >= ?3 AND n.name < ?4
    AND (?5 IS NULL OR r.state = ?5)
ORDER BY n.name LIMIT ?6
