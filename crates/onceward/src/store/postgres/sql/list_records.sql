-- All tenants' records in the order of the key, from where the cursor points. A page is of one
-- snapshot; the cursor is a key, which closes the race of offsets with rows that come and go.
SELECT
    r.tenant, r.kind, r.name, r.state, r.fingerprint, r.rev, r.fence, r.last_fence, r.token,
    r.attempt, r.priority, r.created_at, r.updated_at, r.due_at, r.expires_at, r.sweep_at,
    r.outcome, r.has_payload, r.rest
FROM records AS r
WHERE (r.tenant, r.kind, r.name) > ($1, $2, $3)
    AND ($4::text IS NULL OR split_part(r.name, ':', 1) = $4)
    AND ($5::smallint IS NULL OR r.state = $5)
ORDER BY r.tenant, r.kind, r.name
LIMIT $6
