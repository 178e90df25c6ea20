-- A record that is not young, and its outcome, from one snapshot. A name whose record is missing
-- gives a row without one: that is damage, and must not pass for a key that nobody has used.
SELECT r.state, r.rev, r.fence, r.last_fence, r.token, r.fingerprint, r.attempt, r.priority,
    r.created_at, r.updated_at, r.due_at, r.expires_at, r.sweep_at, r.outcome, r.has_payload,
    r.rest, r.outcome_id, o.body, r.payload_id
FROM names n
LEFT JOIN records r ON r.id = n.id
LEFT JOIN outcomes o ON o.id = r.outcome_id
WHERE n.tenant = ?1 AND n.kind = ?2 AND n.name = ?3
