-- Runs under the locks of lock.sql, which close the race of two writers; the conflict is with the
-- row that find_records.sql saw. One statement for the whole group: no row comes twice in it.
INSERT INTO records (
    tenant, kind, name, state, fingerprint, rev, fence, last_fence, token, attempt, priority,
    created_at, updated_at, due_at, expires_at, sweep_at, outcome, has_payload, rest
)
SELECT * FROM unnest(
    $1::text[], $2::smallint[], $3::text[], $4::smallint[], $5::bytea[], $6::bigint[],
    $7::bigint[], $8::bigint[], $9::bytea[], $10::bigint[], $11::smallint[], $12::bigint[],
    $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[], $17::bytea[], $18::boolean[],
    $19::bytea[]
)
ON CONFLICT (tenant, kind, name) DO UPDATE SET
    state = EXCLUDED.state, fingerprint = EXCLUDED.fingerprint, rev = EXCLUDED.rev,
    fence = EXCLUDED.fence, last_fence = EXCLUDED.last_fence, token = EXCLUDED.token,
    attempt = EXCLUDED.attempt, priority = EXCLUDED.priority, created_at = EXCLUDED.created_at,
    updated_at = EXCLUDED.updated_at, due_at = EXCLUDED.due_at, expires_at = EXCLUDED.expires_at,
    sweep_at = EXCLUDED.sweep_at, outcome = EXCLUDED.outcome,
    has_payload = EXCLUDED.has_payload, rest = EXCLUDED.rest
