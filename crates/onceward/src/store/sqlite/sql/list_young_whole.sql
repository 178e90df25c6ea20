-- Young records with all that their seals cover.
SELECT r.state, r.rev, r.fence, r.last_fence, r.token, r.fingerprint, r.attempt, r.priority,
    r.created_at, r.updated_at, r.due_at, r.expires_at, r.sweep_at, r.outcome, r.has_payload,
    r.rest, r.tenant, r.kind, r.name, r.id
FROM records r WHERE r.id > ?1 ORDER BY r.id
