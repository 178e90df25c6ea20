-- One tenant's records: per kind a range of names, so that every kind is one index range. The
-- cursor is a key, which closes the race of offsets with rows that come and go.
SELECT
    r.tenant, r.kind, r.name, r.state, r.fingerprint, r.rev, r.fence, r.last_fence, r.token,
    r.attempt, r.priority, r.created_at, r.updated_at, r.due_at, r.expires_at, r.sweep_at,
    r.outcome, r.has_payload, r.rest
FROM unnest($2::smallint[], $3::text[]) AS part (kind, above)
CROSS JOIN LATERAL (
    SELECT * FROM records AS one
    WHERE one.tenant = $1 AND one.kind = part.kind AND one.name > part.above
        AND ($4::text IS NULL OR one.name < $4)
        AND ($5::smallint IS NULL OR one.state = $5)
    ORDER BY one.name
    LIMIT $6
) AS r
ORDER BY r.kind, r.name
LIMIT $6
