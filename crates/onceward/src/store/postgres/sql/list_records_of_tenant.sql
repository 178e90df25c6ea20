-- One tenant's records: per kind a range of names, each of them one index range of one partition. A
-- kind that the cursor has passed has no start, and is not looked at. The cursor is a key, which
-- closes the race of offsets with rows that come and go.
SELECT
    tenant, kind, name, state, fingerprint, rev, fence, last_fence, token, attempt, priority,
    created_at, updated_at, due_at, expires_at, sweep_at, outcome, has_payload, rest
FROM (
    (
        SELECT * FROM records
        WHERE tenant = $1 AND kind = 0 AND name > ($2::text[])[1]
            AND ($3::text IS NULL OR name < $3) AND ($4::smallint IS NULL OR state = $4)
        ORDER BY tenant, kind, name
        LIMIT $5
    )
    UNION ALL
    (
        SELECT * FROM records
        WHERE tenant = $1 AND kind = 1 AND name > ($2::text[])[2]
            AND ($3::text IS NULL OR name < $3) AND ($4::smallint IS NULL OR state = $4)
        ORDER BY tenant, kind, name
        LIMIT $5
    )
    UNION ALL
    (
        SELECT * FROM records
        WHERE tenant = $1 AND kind = 2 AND name > ($2::text[])[3]
            AND ($3::text IS NULL OR name < $3) AND ($4::smallint IS NULL OR state = $4)
        ORDER BY tenant, kind, name
        LIMIT $5
    )
    UNION ALL
    (
        SELECT * FROM records
        WHERE tenant = $1 AND kind = 3 AND name > ($2::text[])[4]
            AND ($3::text IS NULL OR name < $3) AND ($4::smallint IS NULL OR state = $4)
        ORDER BY tenant, kind, name
        LIMIT $5
    )
) AS r
ORDER BY kind, name
LIMIT $5
