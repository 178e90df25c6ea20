-- A record that the writer has looked for under its lock: neither young nor in names. Its row has the
-- number of the stamp, which is its rev.
INSERT INTO records (
    id, tenant, kind, name, state, rev, fence, last_fence, token, fingerprint, attempt, priority,
    created_at, updated_at, due_at, expires_at, sweep_at, outcome, has_payload, rest,
    queue, outcome_id, payload_id, room
) VALUES (
    ?5, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11,
    ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19,
    ?20, ?21, ?22, ?26
)
