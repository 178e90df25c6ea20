-- Jobs that may be taken: per priority a range of instants, so that a heap of jobs for tomorrow
-- costs nothing today. Closes no race: two takers see the same job, and its rev lets one have it.
SELECT
    r.tenant, r.kind, r.name, r.state, r.fingerprint, r.rev, r.fence, r.last_fence, r.token,
    r.attempt, r.priority, r.created_at, r.updated_at, r.due_at, r.expires_at, r.sweep_at,
    r.outcome, r.has_payload, r.rest
FROM unnest($2::smallint[], $3::bigint[], $4::text[], $5::text[])
    AS part (priority, due_at, tenant, name)
CROSS JOIN LATERAL (
    SELECT * FROM records_job AS one
    WHERE hashtextextended(split_part(one.name, ':', 1), 0) = hashtextextended($1, 0)
        AND split_part(one.name, ':', 1) = $1
        AND one.state IN (0, 1, 3)
        AND one.priority = part.priority
        AND one.due_at IS NOT NULL AND one.due_at <= $6
        AND (one.due_at, one.tenant, one.name) > (part.due_at, part.tenant, part.name)
    ORDER BY one.due_at, one.tenant, one.name
    LIMIT $7
) AS r
ORDER BY r.priority DESC, r.due_at, r.tenant, r.name
LIMIT $7
