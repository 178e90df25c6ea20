-- Jobs that may be taken: the priorities that the queue has, one index probe each, and of each a
-- range of instants, so that a heap of jobs for tomorrow costs nothing today. Only the cursor's own
-- priority starts behind the cursor. Closes no race: two takers see the same job, and its rev lets
-- one have it.
WITH RECURSIVE part (priority) AS (
    SELECT 256::smallint
    UNION ALL
    SELECT (
        SELECT one.priority FROM records_job AS one
        WHERE hashtextextended(split_part(one.name, ':', 1), 0) = hashtextextended($1, 0)
            AND split_part(one.name, ':', 1) = $1
            AND one.state IN (0, 1, 3) AND one.due_at IS NOT NULL
            AND one.priority < part.priority AND one.priority <= $2
        ORDER BY one.priority DESC
        LIMIT 1
    )
    FROM part WHERE part.priority IS NOT NULL
)
SELECT
    r.tenant, r.kind, r.name, r.state, r.fingerprint, r.rev, r.fence, r.last_fence, r.token,
    r.attempt, r.priority, r.created_at, r.updated_at, r.due_at, r.expires_at, r.sweep_at,
    r.outcome, r.has_payload, r.rest
FROM part
CROSS JOIN LATERAL (
    SELECT * FROM records_job AS one
    WHERE hashtextextended(split_part(one.name, ':', 1), 0) = hashtextextended($1, 0)
        AND split_part(one.name, ':', 1) = $1
        AND one.state IN (0, 1, 3) AND one.due_at IS NOT NULL
        AND one.priority = part.priority AND one.due_at <= $6
        AND (one.due_at, one.tenant, one.name) > (
            CASE WHEN part.priority = $2 THEN $3 ELSE -1 END,
            CASE WHEN part.priority = $2 THEN $4 ELSE '' END,
            CASE WHEN part.priority = $2 THEN $5 ELSE '' END
        )
    ORDER BY one.due_at, one.tenant, one.name
    LIMIT $7
) AS r
ORDER BY r.priority DESC, r.due_at, r.tenant, r.name
LIMIT $7
