-- A record by its id and its outcome, from one snapshot. A row under
-- another name is not the record.
SELECT r.state, r.rev, r.fence, r.last_fence, r.token, r.fingerprint, r.attempt, r.priority,
    r.created_at, r.updated_at, r.due_at, r.expires_at, r.sweep_at, r.outcome, r.has_payload,
    r.rest, r.outcome_id, o.body, r.payload_id
FROM records r LEFT JOIN outcomes o ON o.id = r.outcome_id
WHERE r.id = ?1 AND r.name = ?2
