-- The group: one call of one function, and nothing else, writes records, outcomes, payloads, marks,
-- entries and tokens for the engine. Locks first, then what is there, then now and stamps, then the
-- writes; each statement of a function sees what was committed before it began (read committed), so
-- what is looked at after the locks can't change before our commit.
--
-- Locks are numbers that stand for names of keys, marks and tokens, because rows can't be locked
-- before they exist. They come in order and are tried, never waited for: someone's open transaction
-- makes one batch leave and delays nobody. A lock is released after the rows are visible to
-- everyone, so the next holder sees them all.
--
-- Everything that belongs to a tenant lies in slices: the n-th tenant's part of an array ends where
-- the n-th number of its `_end` array says. The tenant is set for its slice alone, never a list of
-- them, and is empty again when the function returns.

-- The number that stands for a name: the schema, `record`, tenant, kind and name, or the schema,
-- `mark`, tenant and name, or the schema, `token` and the token in hex. The same in the program.
CREATE FUNCTION lock_of(VARIADIC parts text[]) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT ('x' || encode(substr(sha256(string_agg(
        int8send(octet_length(convert_to(one.part, 'UTF8'))) || convert_to(one.part, 'UTF8'),
        ''::bytea ORDER BY one.place
    )), 1, 8), 'hex'))::bit(64)::bigint
    FROM unnest(parts) WITH ORDINALITY AS one (part, place)
$$;

-- A record, with what lies beside it, or a mark; the same shape for loads, lists and refusals.
CREATE TYPE looked AS (
    tenant text, kind smallint, name text, state smallint, fingerprint bytea, rev bigint,
    fence bigint, last_fence bigint, token bytea, attempt bigint, priority smallint,
    created_at bigint, updated_at bigint, due_at bigint, expires_at bigint, sweep_at bigint,
    outcome bytea, has_payload boolean, rest bytea,
    place bigint, outcome_bytes bytea, payload_bytes bytea, payload_seal bytea,
    mark_position bigint, mark_updated_at bigint, mark_value bytea, mark_digest bytea,
    mark_seal bytea
);

-- An instant of a draft: a while after now (-1: the end of time), or as it was given.
CREATE FUNCTION instant(now bigint, after bigint, kept bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS 'SELECT CASE WHEN after IS NULL THEN kept WHEN after < 0 THEN 9223372036854775807
        ELSE now + after END';

-- The eight bytes that close a record's rest: a hash of what its writer knew beforehand (`base`)
-- and of what is known only now. The same as in the program's codec.
CREATE FUNCTION record_seal(
    base bytea, rev bigint, fence bigint, last_fence bigint, created_at bigint, updated_at bigint,
    due_at bigint, expires_at bigint, sweep_at bigint
) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS 'SELECT substr(sha256(base || int8send(rev) || int8send(coalesce(fence, -1))
        || int8send(last_fence) || int8send(created_at) || int8send(updated_at)
        || int8send(coalesce(due_at, -1)) || int8send(coalesce(expires_at, -1))
        || int8send(coalesce(sweep_at, -1))), 1, 8)';

-- The same of a mark; `base` is the part that names it.
CREATE FUNCTION mark_seal(base bytea, at_position bigint, updated_at bigint, digest bytea)
    RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS 'SELECT substr(sha256(base || int8send(8) || int8send(at_position) || int8send(8)
        || int8send(updated_at) || int8send(coalesce(octet_length(digest), 0))
        || coalesce(digest, ''''::bytea)), 1, 8)';

-- The records of a slice as they are written: the meaning of a draft, as the program's core says
-- it. `grants` is 0 keeps the fence, 1 grants, 2 ends, 3 grants and ends at once; and 4 more where
-- the batch demands that no record is there. Those that draw no stamp are left out.
CREATE FUNCTION resolved(
    whose text, now_ms bigint, fresh boolean, kind smallint[], name text[], state smallint[],
    fingerprint bytea[], rev bigint[], grants smallint[], fence bigint[], last_fence bigint[],
    token bytea[], attempt bigint[], priority smallint[], created bigint[], due bigint[],
    due_in bigint[], expires bigint[], expires_in bigint[], sweep bigint[], sweep_in bigint[],
    outcome bytea[], has_payload boolean[], rest bytea[], base bytea[]
) RETURNS TABLE (
    r_tenant text, r_kind smallint, r_name text, r_state smallint, r_fingerprint bytea,
    r_rev bigint, r_fence bigint, r_last_fence bigint, r_token bytea, r_attempt bigint,
    r_priority smallint, r_created_at bigint, r_updated_at bigint, r_due_at bigint,
    r_expires_at bigint, r_sweep_at bigint, r_outcome bytea, r_has_payload boolean, r_rest bytea
) LANGUAGE sql STABLE AS $$
    SELECT
        $1, one.kind, one.name, one.state, one.fingerprint, one.rev, one.fence, one.last_fence,
        one.token, one.attempt, one.priority, one.created_at, $2, one.due_at, one.expires_at,
        one.sweep_at, one.outcome, one.has_payload,
        one.rest || record_seal(
            one.base, one.rev, one.fence, one.last_fence, one.created_at, $2, one.due_at,
            one.expires_at, one.sweep_at
        )
    FROM (
        SELECT
            p.kind, p.name, p.state, p.fingerprint, p.rev,
            CASE p.grants & 3 WHEN 0 THEN p.fence WHEN 1 THEN p.rev END AS fence,
            CASE WHEN p.grants & 3 IN (1, 3) THEN p.rev ELSE p.last_fence END AS last_fence,
            p.token, p.attempt, p.priority, coalesce(p.created, $2) AS created_at,
            instant($2, p.due_in, p.due) AS due_at,
            instant($2, p.expires_in, p.expires) AS expires_at,
            instant($2, p.sweep_in, p.sweep) AS sweep_at,
            p.outcome, p.has_payload, p.rest, p.base
        FROM unnest(
            $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21,
            $22, $23, $24, $25
        ) AS p (
            kind, name, state, fingerprint, rev, grants, fence, last_fence, token, attempt,
            priority, created, due, due_in, expires, expires_in, sweep, sweep_in, outcome,
            has_payload, rest, base
        )
        WHERE p.rev IS NOT NULL AND (p.grants >= 4) = $3
    ) AS one
$$;

-- Looks records up for one tenant, which is set by the caller. Here and everywhere below, a row is
-- looked up by a subquery of one row, so that the whole key is used whatever the server believes
-- of the table: one that was never analysed is believed to be empty, and joined as such.
CREATE FUNCTION look_records(
    whose text, kinds smallint[], names text[], payloads boolean[], places bigint[]
) RETURNS SETOF looked LANGUAGE sql STABLE AS $$
    SELECT
        r.tenant, r.kind, r.name, r.state, r.fingerprint, r.rev, r.fence, r.last_fence, r.token,
        r.attempt, r.priority, r.created_at, r.updated_at, r.due_at, r.expires_at, r.sweep_at,
        r.outcome, r.has_payload, r.rest,
        wanted.place, o.bytes, p.bytes, p.seal,
        NULL::bigint, NULL::bigint, NULL::bytea, NULL::bytea, NULL::bytea
    FROM unnest(kinds, names, payloads, places) AS wanted (kind, name, payload, place)
    CROSS JOIN LATERAL (
        SELECT * FROM records AS found
        WHERE found.tenant = whose AND found.kind = wanted.kind AND found.name = wanted.name
        LIMIT 1
    ) AS r
    LEFT JOIN LATERAL (
        SELECT found.bytes FROM outcomes AS found
        WHERE found.tenant = whose AND found.kind = wanted.kind AND found.name = wanted.name
        LIMIT 1
    ) AS o ON true
    LEFT JOIN LATERAL (
        SELECT found.bytes, found.seal FROM payloads AS found
        WHERE wanted.payload AND found.tenant = whose AND found.kind = wanted.kind
            AND found.name = wanted.name
        LIMIT 1
    ) AS p ON true
$$;

CREATE FUNCTION look_marks(whose text, names text[], places bigint[])
RETURNS SETOF looked LANGUAGE sql STABLE AS $$
    SELECT
        m.tenant, NULL::smallint, m.name, NULL::smallint, NULL::bytea, NULL::bigint, NULL::bigint,
        NULL::bigint, NULL::bytea, NULL::bigint, NULL::smallint, NULL::bigint, NULL::bigint,
        NULL::bigint, NULL::bigint, NULL::bigint, NULL::bytea, NULL::boolean, NULL::bytea,
        wanted.place, NULL::bytea, NULL::bytea, NULL::bytea,
        m.position, m.updated_at, m.value, m.digest, m.seal
    FROM unnest(names, places) AS wanted (name, place)
    CROSS JOIN LATERAL (
        SELECT * FROM marks AS found
        WHERE found.tenant = whose AND found.name = wanted.name
        LIMIT 1
    ) AS m
$$;

-- Applies a group. The first row is the answer: now, what became of each batch (0 applied, 1 left
-- because a lock was held, 2 applied before, 3 refused), rev and fence of those applied before, the
-- checks that failed (records from 1, marks from -1 down), and the stamps of the puts. The other
-- rows show what is there where a check failed; `place` names the check.
CREATE FUNCTION apply_group(
    batches integer, locks bigint[], lock_batch integer[],
    token_batch integer[], tokens bytea[], purge_ms bigint,
    tenants text[],
    check_end integer[], check_batch integer[], check_rule smallint[], check_kind smallint[],
    check_name text[], check_number bigint[], check_token bytea[],
    stand_end integer[], stand_batch integer[], stand_rule smallint[], stand_name text[],
    stand_number bigint[],
    put_end integer[], put_batch integer[], put_kind smallint[], put_name text[],
    put_state smallint[], put_fingerprint bytea[], put_grant smallint[], put_fence bigint[],
    put_last_fence bigint[], put_token bytea[], put_attempt bigint[], put_priority smallint[],
    put_created bigint[], put_due bigint[], put_due_in bigint[], put_expires bigint[],
    put_expires_in bigint[], put_sweep bigint[], put_sweep_in bigint[], put_outcome bytea[],
    put_has_payload boolean[], put_rest bytea[], put_base bytea[], put_turn integer[],
    body_end integer[], body_batch integer[], body_table smallint[], body_kind smallint[],
    body_name text[], body_bytes bytea[], body_seal bytea[],
    gone_end integer[], gone_batch integer[], gone_table smallint[], gone_kind smallint[],
    gone_name text[],
    mark_end integer[], mark_batch integer[], mark_name text[], mark_position bigint[],
    mark_keeps boolean[], mark_value bytea[], mark_digest bytea[], mark_base bytea[],
    audit_end integer[], audit_batch integer[], audit_action text[], audit_subject text[],
    audit_key_hash text[], audit_payload_hash text[], audit_before bigint[], audit_after bigint[],
    audit_fence bigint[], audit_actor text[], audit_request text[], audit_correlation text[],
    audit_detail text[], audit_turn integer[],
    OUT now_ms bigint, OUT verdicts smallint[], OUT again_rev bigint[], OUT again_fence bigint[],
    OUT failed bigint[], OUT stamps bigint[], OUT there looked
) RETURNS SETOF record LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
DECLARE
    ok boolean[] := array_fill(true, ARRAY[batches]);
    n integer;
    low integer;
    high integer;
    seen record;
    notified text;
    entries bigint[];
BEGIN
    verdicts := array_fill(0::smallint, ARRAY[batches]);
    again_rev := array_fill(NULL::bigint, ARRAY[batches]);
    again_fence := again_rev;
    -- A statement of its own: whatever the holders before us committed is seen by the next.
    FOR seen IN
        SELECT DISTINCT one.batch FROM unnest(locks, lock_batch) AS one (lock, batch)
        WHERE NOT pg_try_advisory_xact_lock(one.lock)
    LOOP
        ok[seen.batch] := false;
        verdicts[seen.batch] := 1;
    END LOOP;
    -- Now is read once everything is locked: a slow writer with an old clock would shorten or
    -- lengthen leases that others have judged since.
    now_ms := store_now_ms();

    -- A batch that comes again is known by its token, and changes nothing.
    IF cardinality(tokens) > 0 THEN
        FOR seen IN
            SELECT one.batch FROM unnest(token_batch, tokens) AS one (batch, token)
            WHERE EXISTS (SELECT FROM tokens AS t WHERE t.token = one.token OFFSET 0)
        LOOP
            IF ok[seen.batch] THEN
                ok[seen.batch] := false;
                verdicts[seen.batch] := 2;
            END IF;
        END LOOP;
    END IF;

    low := 1;
    FOR n IN 1 .. cardinality(tenants) LOOP
        high := check_end[n];
        CONTINUE WHEN high < low AND stand_end[n] <= coalesce(stand_end[n - 1], 0);
        PERFORM set_config('onceward.tenant', tenants[n], true);
        IF high >= low THEN
            FOR seen IN
                SELECT
                    low - 1 + one.place AS place, one.batch, r.rev, r.fence,
                    coalesce(r.token = one.token, false) AS again
                FROM unnest(
                    check_batch[low:high], check_rule[low:high], check_kind[low:high],
                    check_name[low:high], check_number[low:high], check_token[low:high]
                ) WITH ORDINALITY AS one (batch, rule, kind, name, number, token, place)
                LEFT JOIN LATERAL (
                    SELECT found.rev, found.fence, found.token FROM records AS found
                    WHERE found.tenant = tenants[n] AND found.kind = one.kind
                        AND found.name = one.name
                    LIMIT 1
                ) AS r ON true
                WHERE r.token = one.token OR CASE one.rule
                    WHEN 0 THEN false
                    WHEN 1 THEN r.rev IS NOT NULL
                    WHEN 2 THEN (r.rev = one.number) IS NOT TRUE
                    ELSE (r.fence = one.number) IS NOT TRUE
                END
            LOOP
                IF verdicts[seen.batch] IN (0, 3) AND seen.again THEN
                    ok[seen.batch] := false;
                    verdicts[seen.batch] := 2;
                    again_rev[seen.batch] := seen.rev;
                    again_fence[seen.batch] := seen.fence;
                ELSIF verdicts[seen.batch] IN (0, 3) AND NOT seen.again THEN
                    ok[seen.batch] := false;
                    verdicts[seen.batch] := 3;
                    failed := failed || seen.place;
                END IF;
            END LOOP;
            low := high + 1;
        END IF;
        IF stand_end[n] > coalesce(stand_end[n - 1], 0) THEN
            FOR seen IN
                SELECT coalesce(stand_end[n - 1], 0) + one.place AS place, one.batch
                FROM unnest(
                    stand_batch[coalesce(stand_end[n - 1], 0) + 1:stand_end[n]],
                    stand_rule[coalesce(stand_end[n - 1], 0) + 1:stand_end[n]],
                    stand_name[coalesce(stand_end[n - 1], 0) + 1:stand_end[n]],
                    stand_number[coalesce(stand_end[n - 1], 0) + 1:stand_end[n]]
                ) WITH ORDINALITY AS one (batch, rule, name, number, place)
                LEFT JOIN LATERAL (
                    SELECT found.position FROM marks AS found
                    WHERE found.tenant = tenants[n] AND found.name = one.name
                    LIMIT 1
                ) AS m ON true
                WHERE NOT CASE one.rule
                    WHEN 0 THEN coalesce(m.position, 0) = one.number
                    ELSE coalesce(m.position, 0) <= one.number
                END
            LOOP
                IF verdicts[seen.batch] IN (0, 3) THEN
                    ok[seen.batch] := false;
                    verdicts[seen.batch] := 3;
                    failed := failed || (-seen.place);
                END IF;
            END LOOP;
        END IF;
    END LOOP;

    -- Drawn after the locks: nobody else can have drawn for the same key since. A number that is
    -- lost in a rollback or a crash leaves a gap and no harm. What was refused draws none. Slices
    -- are in the order of tenants; numbers rise in the order of the writes, whose turns are told.
    stamps := ARRAY(
        SELECT drawn.stamp
        FROM (
            SELECT one.place, CASE WHEN ok[one.batch] THEN nextval('stamps') END AS stamp
            FROM unnest(put_batch, put_turn) WITH ORDINALITY AS one (batch, turn, place)
            ORDER BY one.turn
        ) AS drawn
        ORDER BY drawn.place
    );
    entries := ARRAY(
        SELECT drawn.entry
        FROM (
            SELECT one.place, CASE WHEN ok[one.batch] THEN nextval('entries') END AS entry
            FROM unnest(audit_batch, audit_turn) WITH ORDINALITY AS one (batch, turn, place)
            ORDER BY one.turn
        ) AS drawn
        ORDER BY drawn.place
    );
    FOR n IN 1 .. cardinality(tenants) LOOP
        -- A group that writes nothing takes no lock of a table either.
        EXIT WHEN NOT true = ANY (ok);
        PERFORM set_config('onceward.tenant', tenants[n], true);

        low := coalesce(put_end[n - 1], 0) + 1;
        high := put_end[n];
        IF high >= low THEN
            -- Most records are new, and a plain insert is cheaper than one that may be an update.
            IF 4 <= ANY (put_grant[low:high]) THEN
                INSERT INTO records (
                    tenant, kind, name, state, fingerprint, rev, fence, last_fence, token, attempt,
                    priority, created_at, updated_at, due_at, expires_at, sweep_at, outcome,
                    has_payload, rest
                )
                SELECT * FROM resolved(
                    tenants[n], now_ms, true, put_kind[low:high], put_name[low:high],
                    put_state[low:high], put_fingerprint[low:high], stamps[low:high],
                    put_grant[low:high], put_fence[low:high], put_last_fence[low:high],
                    put_token[low:high], put_attempt[low:high], put_priority[low:high],
                    put_created[low:high], put_due[low:high], put_due_in[low:high],
                    put_expires[low:high], put_expires_in[low:high], put_sweep[low:high],
                    put_sweep_in[low:high], put_outcome[low:high], put_has_payload[low:high],
                    put_rest[low:high], put_base[low:high]
                );
            END IF;
            IF 4 > ANY (put_grant[low:high]) THEN
                INSERT INTO records (
                    tenant, kind, name, state, fingerprint, rev, fence, last_fence, token, attempt,
                    priority, created_at, updated_at, due_at, expires_at, sweep_at, outcome,
                    has_payload, rest
                )
                SELECT * FROM resolved(
                    tenants[n], now_ms, false, put_kind[low:high], put_name[low:high],
                    put_state[low:high], put_fingerprint[low:high], stamps[low:high],
                    put_grant[low:high], put_fence[low:high], put_last_fence[low:high],
                    put_token[low:high], put_attempt[low:high], put_priority[low:high],
                    put_created[low:high], put_due[low:high], put_due_in[low:high],
                    put_expires[low:high], put_expires_in[low:high], put_sweep[low:high],
                    put_sweep_in[low:high], put_outcome[low:high], put_has_payload[low:high],
                    put_rest[low:high], put_base[low:high]
                )
                ON CONFLICT (tenant, kind, name) DO UPDATE SET
                    state = EXCLUDED.state, fingerprint = EXCLUDED.fingerprint,
                    rev = EXCLUDED.rev, fence = EXCLUDED.fence, last_fence = EXCLUDED.last_fence,
                    token = EXCLUDED.token, attempt = EXCLUDED.attempt,
                    priority = EXCLUDED.priority, created_at = EXCLUDED.created_at,
                    updated_at = EXCLUDED.updated_at, due_at = EXCLUDED.due_at,
                    expires_at = EXCLUDED.expires_at, sweep_at = EXCLUDED.sweep_at,
                    outcome = EXCLUDED.outcome, has_payload = EXCLUDED.has_payload,
                    rest = EXCLUDED.rest;
            END IF;
        END IF;

        -- Before the bodies: a batch may clear what another slice of it does not set.
        low := coalesce(gone_end[n - 1], 0) + 1;
        high := gone_end[n];
        FOR i IN low .. high LOOP
            CONTINUE WHEN NOT ok[gone_batch[i]];
            IF gone_table[i] = 0 THEN
                DELETE FROM records AS r
                WHERE r.tenant = tenants[n] AND r.kind = gone_kind[i] AND r.name = gone_name[i];
            END IF;
            IF gone_table[i] IN (0, 1) THEN
                DELETE FROM outcomes AS r
                WHERE r.tenant = tenants[n] AND r.kind = gone_kind[i] AND r.name = gone_name[i];
            END IF;
            IF gone_table[i] IN (0, 2) THEN
                DELETE FROM payloads AS r
                WHERE r.tenant = tenants[n] AND r.kind = gone_kind[i] AND r.name = gone_name[i];
            END IF;
        END LOOP;

        low := coalesce(body_end[n - 1], 0) + 1;
        high := body_end[n];
        IF high >= low THEN
            IF 1 = ANY (body_table[low:high]) THEN
                INSERT INTO outcomes (tenant, kind, name, bytes)
                SELECT tenants[n], one.kind, one.name, one.bytes
                FROM unnest(
                    body_batch[low:high], body_table[low:high], body_kind[low:high],
                    body_name[low:high], body_bytes[low:high]
                ) AS one (batch, place, kind, name, bytes)
                WHERE ok[one.batch] AND one.place = 1
                ON CONFLICT (tenant, kind, name) DO UPDATE SET bytes = EXCLUDED.bytes;
            END IF;
            IF 2 = ANY (body_table[low:high]) THEN
                INSERT INTO payloads (tenant, kind, name, bytes, seal)
                SELECT tenants[n], one.kind, one.name, one.bytes, one.seal
                FROM unnest(
                    body_batch[low:high], body_table[low:high], body_kind[low:high],
                    body_name[low:high], body_bytes[low:high], body_seal[low:high]
                ) AS one (batch, place, kind, name, bytes, seal)
                WHERE ok[one.batch] AND one.place = 2
                ON CONFLICT (tenant, kind, name)
                    DO UPDATE SET bytes = EXCLUDED.bytes, seal = EXCLUDED.seal;
            END IF;
        END IF;

        -- The maximum keeps a mark from moving back even if someone's SQL went around the locks. A
        -- mark that keeps its value is told by its digest, so that the value is not read.
        low := coalesce(mark_end[n - 1], 0) + 1;
        high := mark_end[n];
        IF high >= low THEN
            INSERT INTO marks AS kept (tenant, name, position, updated_at, seal, digest, value)
            SELECT
                tenants[n], one.name, one.position, now_ms,
                mark_seal(one.base, one.position, now_ms, one.digest), one.digest, one.value
            FROM (
                SELECT
                    w.name, greatest(w.position, m.position) AS position, w.value, w.base,
                    CASE WHEN w.keeps THEN m.digest ELSE w.digest END AS digest
                FROM unnest(
                    mark_batch[low:high], mark_name[low:high], mark_position[low:high],
                    mark_keeps[low:high], mark_value[low:high], mark_digest[low:high],
                    mark_base[low:high]
                ) AS w (batch, name, position, keeps, value, digest, base)
                LEFT JOIN LATERAL (
                    SELECT found.position, found.digest FROM marks AS found
                    WHERE found.tenant = tenants[n] AND found.name = w.name
                    LIMIT 1
                ) AS m ON true
                WHERE ok[w.batch]
            ) AS one
            ON CONFLICT (tenant, name) DO UPDATE SET
                position = EXCLUDED.position, updated_at = EXCLUDED.updated_at,
                seal = EXCLUDED.seal, digest = EXCLUDED.digest,
                value = CASE
                    WHEN EXCLUDED.value IS NULL AND EXCLUDED.digest = kept.digest THEN kept.value
                    ELSE EXCLUDED.value
                END;
        END IF;

        low := coalesce(audit_end[n - 1], 0) + 1;
        high := audit_end[n];
        IF high >= low THEN
            INSERT INTO audit (
                id, tenant, at, action, subject, key_hash, payload_hash, version_before, version_after,
                fence, actor, request_id, correlation_id, detail
            )
            SELECT
                one.id, tenants[n], now_ms, one.action, one.subject, one.key_hash, one.payload_hash,
                one.version_before, one.version_after, one.fence, one.actor, one.request_id,
                one.correlation_id, one.detail
            FROM unnest(
                entries[low:high], audit_action[low:high], audit_subject[low:high],
                audit_key_hash[low:high], audit_payload_hash[low:high], audit_before[low:high],
                audit_after[low:high], audit_fence[low:high], audit_actor[low:high],
                audit_request[low:high], audit_correlation[low:high], audit_detail[low:high]
            ) AS one (
                id, action, subject, key_hash, payload_hash, version_before, version_after,
                fence, actor, request_id, correlation_id, detail
            )
            WHERE one.id IS NOT NULL;
        END IF;
    END LOOP;

    IF cardinality(tokens) > 0 AND true = ANY (ok) THEN
        -- No conflict clause: a token that is already there must fail the group, not pass unseen.
        INSERT INTO tokens (token, at)
        SELECT one.token, now_ms FROM unnest(token_batch, tokens) AS one (batch, token)
        WHERE ok[one.batch];
    END IF;
    IF purge_ms IS NOT NULL THEN
        -- Skips what another process prunes at the same time.
        DELETE FROM tokens WHERE token IN (
            SELECT old.token FROM tokens AS old WHERE old.at < now_ms - purge_ms
            ORDER BY old.at LIMIT 1024 FOR UPDATE SKIP LOCKED
        );
    END IF;

    -- One bell for all that someone in another process waits for. It rings with the commit.
    DELETE FROM wanted AS w WHERE w.lock = ANY (ARRAY(
        SELECT one.lock FROM unnest(locks, lock_batch) AS one (lock, batch) WHERE ok[one.batch]
    ));
    IF FOUND THEN
        SELECT string_agg(DISTINCT one.lock::text, ' ') INTO notified
        FROM unnest(locks, lock_batch) AS one (lock, batch) WHERE ok[one.batch];
        -- Too many to name: everyone looks.
        PERFORM pg_notify(
            current_schema(), CASE WHEN octet_length(notified) < 7900 THEN notified ELSE '' END
        );
    END IF;

    there := NULL;
    RETURN NEXT;
    PERFORM set_config('onceward.tenant', '', true);
    IF failed IS NULL THEN
        RETURN;
    END IF;
    FOR n IN 1 .. cardinality(tenants) LOOP
        low := coalesce(check_end[n - 1], 0) + 1;
        high := check_end[n];
        CONTINUE WHEN high < low AND stand_end[n] <= coalesce(stand_end[n - 1], 0);
        PERFORM set_config('onceward.tenant', tenants[n], true);
        RETURN QUERY
            SELECT
                NULL::bigint, NULL::smallint[], NULL::bigint[], NULL::bigint[], NULL::bigint[],
                NULL::bigint[], shown
            FROM look_records(
                tenants[n],
                ARRAY(SELECT check_kind[f] FROM unnest(failed) AS f WHERE f BETWEEN low AND high),
                ARRAY(SELECT check_name[f] FROM unnest(failed) AS f WHERE f BETWEEN low AND high),
                NULL,
                ARRAY(SELECT f FROM unnest(failed) AS f WHERE f BETWEEN low AND high)
            ) AS shown;
        low := coalesce(stand_end[n - 1], 0) + 1;
        high := stand_end[n];
        RETURN QUERY
            SELECT
                NULL::bigint, NULL::smallint[], NULL::bigint[], NULL::bigint[], NULL::bigint[],
                NULL::bigint[], shown
            FROM look_marks(
                tenants[n],
                ARRAY(SELECT stand_name[-f] FROM unnest(failed) AS f WHERE -f BETWEEN low AND high),
                ARRAY(SELECT f FROM unnest(failed) AS f WHERE -f BETWEEN low AND high)
            ) AS shown;
    END LOOP;
    PERFORM set_config('onceward.tenant', '', true);
END
$$;
