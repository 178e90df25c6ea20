-- Records with what lies beside them, in one statement and so of one snapshot: closes the race of
-- a reader that takes the record before and the outcome after someone's commit.
SELECT
    r.tenant, r.kind, r.name, r.state, r.fingerprint, r.rev, r.fence, r.last_fence, r.token,
    r.attempt, r.priority, r.created_at, r.updated_at, r.due_at, r.expires_at, r.sweep_at,
    r.outcome, r.has_payload, r.rest,
    wanted.place, o.bytes, p.bytes, p.seal
FROM unnest($1::text[], $2::smallint[], $3::text[], $4::boolean[])
    WITH ORDINALITY AS wanted (tenant, kind, name, payload, place)
JOIN records AS r ON r.tenant = wanted.tenant AND r.kind = wanted.kind AND r.name = wanted.name
LEFT JOIN outcomes AS o
    ON o.tenant = wanted.tenant AND o.kind = wanted.kind AND o.name = wanted.name
LEFT JOIN payloads AS p -- Where it is not wanted the name is null, and nothing is looked up.
    ON p.tenant = wanted.tenant AND p.kind = wanted.kind
    AND p.name = CASE WHEN wanted.payload THEN wanted.name END
