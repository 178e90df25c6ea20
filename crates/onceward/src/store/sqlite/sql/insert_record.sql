-- A first claim: the insert is the look. Of two that race for one key, the UNIQUE index lets one in;
-- a change count of 0 tells the other. Nobody can come between a look and the write.
INSERT INTO records (
    tenant, kind, name, state, rev, fence, last_fence, token, fingerprint, attempt, priority,
    created_at, updated_at, due_at, expires_at, sweep_at, outcome, has_payload, rest,
    queue, outcome_id, payload_id
) VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11,
    ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19,
    ?20, ?21, ?22
) ON CONFLICT DO NOTHING
