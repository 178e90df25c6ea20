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
-- Everything that belongs to a tenant lies in slices: the rows of one tenant and one kind, as arrays
-- of the types below. The tenant is set for its slice alone, never a list of them, and is empty
-- again when the function returns. No two batches of a group name the same row: the program sees to
-- it, and what is written is counted, so that a row that comes twice fails the group.

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
-- What a group is made of. `batch` counts from 1. `place` and `turn` count the rows of their kind
-- in the whole group from 1; `checked` is the place of the check that looked at the same record, or
-- 0. The program writes these fields in this order.
--
-- A look at a record. Rules: 0 none (only the token is asked for), 1 absent, 2 rev, 3 fence.
CREATE TYPE check_row AS (
    place integer, batch integer, rule smallint, name text, number bigint, token bytea
);
-- A look at a mark. Rules: 0 at this position, 1 at most at it.
CREATE TYPE stand_row AS (
    place integer, batch integer, rule smallint, name text, number bigint
);
-- A record to write. `grants` is 0 keeps the fence, 1 grants, 2 ends, 3 grants and ends at once.
-- Of `due`, `expires` and `sweep` those are whiles that `whiles` names (1, 2, 4), -1 for ever; the
-- others are instants. `sweep_from` is not later than `sweep`, and of its kind. `beside` is 1 sets an
-- outcome, 2 has none, 4 sets a payload, 8 has none; otherwise it keeps what is there.
CREATE TYPE put_row AS (
    turn integer, batch integer, checked integer, name text, state smallint, fingerprint bytea,
    grants smallint, fence bigint, last_fence bigint, token bytea, attempt bigint,
    priority smallint, created bigint, whiles smallint, due bigint, expires bigint, sweep bigint,
    sweep_from bigint, beside smallint, outcome bytea, has_payload boolean, rest bytea, base bytea
);
-- Bytes that are set beside the record of the put with the same turn.
CREATE TYPE outcome_row AS (batch integer, turn integer, bytes bytea);
CREATE TYPE payload_row AS (batch integer, turn integer, bytes bytea, seal bytea);
-- A record that is dropped, with all that lies beside it.
CREATE TYPE gone_row AS (batch integer, name text);
CREATE TYPE mark_row AS (
    batch integer, name text, position bigint, keeps boolean, value bytea, digest bytea, base bytea
);
CREATE TYPE entry_row AS (
    turn integer, batch integer, action text, subject text, key_hash text, payload_hash text,
    version_before bigint, version_after bigint, fence bigint, actor text, request_id text,
    correlation_id text, detail text
);
-- One tenant's rows of one kind; marks and entries lie in any slice of their tenant. Records come in
-- three parts: those that must not be there (`fresh`), those that a check found (`there`), and those
-- of which nothing is known (`others`). `drops` tells what some of the last two set anew or have no
-- more: 1 an outcome, 2 a payload. An array without rows is NULL.
CREATE TYPE slice_row AS (
    tenant text, kind smallint, drops smallint, checks check_row[], stands stand_row[], fresh put_row[],
    there put_row[], others put_row[], outcomes outcome_row[], payloads payload_row[],
    gone gone_row[], marks mark_row[], entries entry_row[]
);
-- A check that did not pass, or a batch that was applied before (`again`).
CREATE TYPE seen_row AS (place integer, batch integer, rev bigint, fence bigint, again boolean);

-- An instant of a draft: a while after now (-1: the end of time), or as it was given.
CREATE FUNCTION instant(now bigint, is_while boolean, given bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS 'SELECT CASE WHEN NOT is_while THEN given WHEN given < 0 THEN 9223372036854775807
        ELSE now + given END';

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
-- Records as they are written: the meaning of a draft, as the program's core says it. Those of
-- batches that are not `ok` are left out. Part of the statement that calls it, not a call of its own.
CREATE FUNCTION resolved(now_ms bigint, ok boolean[], stamp bigint, rows put_row[])
RETURNS TABLE (
    r_checked integer, r_name text, r_state smallint, r_fingerprint bytea, r_rev bigint,
    r_fence bigint, r_last_fence bigint, r_token bytea, r_attempt bigint, r_priority smallint,
    r_created_at bigint, r_due_at bigint, r_expires_at bigint, r_sweep_at bigint,
    r_sweep_from bigint, r_beside smallint, r_outcome bytea, r_has_payload boolean, r_rest bytea
) LANGUAGE sql STABLE AS $$
    SELECT
        one.checked, one.name, one.state, one.fingerprint, one.rev, one.fence, one.last_fence,
        one.token, one.attempt, one.priority, one.created_at, one.due_at, one.expires_at,
        one.sweep_at, one.sweep_from, one.beside, one.outcome, one.has_payload,
        one.rest || record_seal(
            one.base, one.rev, one.fence, one.last_fence, one.created_at, $1, one.due_at,
            one.expires_at, one.sweep_at
        )
    FROM (
        SELECT
            p.checked, p.name, p.state, p.fingerprint, $3 + p.turn AS rev,
            CASE p.grants WHEN 0 THEN p.fence WHEN 1 THEN $3 + p.turn END AS fence,
            CASE WHEN p.grants IN (1, 3) THEN $3 + p.turn ELSE p.last_fence END AS last_fence,
            p.token, p.attempt, p.priority, coalesce(p.created, $1) AS created_at,
            instant($1, p.whiles & 1 <> 0, p.due) AS due_at,
            instant($1, p.whiles & 2 <> 0, p.expires) AS expires_at,
            instant($1, p.whiles & 4 <> 0, p.sweep) AS sweep_at,
            instant($1, p.whiles & 4 <> 0, p.sweep_from) AS sweep_from,
            p.beside, p.outcome, p.has_payload, p.rest, p.base
        FROM unnest($4) AS p
        WHERE $2[p.batch]
    ) AS one
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
-- For each part of `records` a function that looks and one that writes: a statement that names the
-- part itself need not find it out for every row.
DO $make$
DECLARE
    part record;
BEGIN
    FOR part IN
        SELECT of_kind, 'records_' || kind_name AS of_table, kind_name
        FROM unnest(ARRAY['request', 'job', 'event', 'append'])
            WITH ORDINALITY AS one (kind_name, place), LATERAL (SELECT place - 1) AS k (of_kind)
    LOOP
        -- Looks records up for one tenant, which is set by the caller. Here and everywhere below, a
        -- row is looked up by a subquery of one row, so that the whole key is used whatever the
        -- server believes of the table: one that was never analysed is believed to be empty, and
        -- joined as such.
        EXECUTE format($function$
            CREATE FUNCTION look_%1$s(
                whose text, names text[], payloads boolean[], places bigint[]
            ) RETURNS SETOF looked LANGUAGE sql STABLE AS $body$
                SELECT
                    r.tenant, r.kind, r.name, r.state, r.fingerprint, r.rev, r.fence, r.last_fence,
                    r.token, r.attempt, r.priority, r.created_at, r.updated_at, r.due_at,
                    r.expires_at, r.sweep_at, r.outcome, r.has_payload, r.rest,
                    wanted.place, o.bytes, p.bytes, p.seal,
                    NULL::bigint, NULL::bigint, NULL::bytea, NULL::bytea, NULL::bytea
                FROM unnest(names, payloads, places) AS wanted (name, payload, place)
                CROSS JOIN LATERAL (
                    SELECT * FROM %2$I AS found
                    WHERE found.tenant = whose AND found.kind = %3$s AND found.name = wanted.name
                    LIMIT 1
                ) AS r
                LEFT JOIN LATERAL (
                    SELECT found.bytes FROM outcomes AS found
                    WHERE found.id = r.outcome_id AND found.tenant = whose
                    LIMIT 1
                ) AS o ON true
                LEFT JOIN LATERAL (
                    SELECT found.bytes, found.seal FROM payloads AS found
                    WHERE wanted.payload AND found.id = r.payload_id AND found.tenant = whose
                    LIMIT 1
                ) AS p ON true
            $body$
        $function$, part.kind_name, part.of_table, part.of_kind);

        -- What the checks of a slice found: where each record is, whether any has an outcome or a
        -- payload, whether anybody waits for any key, and the checks that did not pass.
        EXECUTE format($function$
            CREATE FUNCTION check_%1$s(
                whose text, checks check_row[], OUT at tid[], OUT outcomes boolean,
                OUT payloads boolean, OUT wanting boolean, OUT seen seen_row[]
            ) LANGUAGE plpgsql AS $body$
            BEGIN
                SELECT
                    array_agg(r.at), bool_or(r.outcome_id IS NOT NULL),
                    bool_or(r.payload_id IS NOT NULL), EXISTS (SELECT FROM wanted),
                    array_agg(ROW(
                        one.place, one.batch, r.rev, r.fence, coalesce(r.token = one.token, false)
                    )::seen_row) FILTER (WHERE r.token = one.token OR CASE one.rule
                        WHEN 0 THEN false
                        WHEN 1 THEN r.rev IS NOT NULL
                        WHEN 2 THEN (r.rev = one.number) IS NOT TRUE
                        ELSE (r.fence = one.number) IS NOT TRUE
                    END)
                INTO at, outcomes, payloads, wanting, seen
                FROM unnest(checks) AS one
                LEFT JOIN LATERAL (
                    SELECT
                        found.ctid AS at, found.outcome_id, found.payload_id, found.rev,
                        found.fence, found.token
                    FROM %2$I AS found
                    WHERE found.tenant = whose AND found.kind = %3$s AND found.name = one.name
                    LIMIT 1
                ) AS r ON true;
            END
            $body$
        $function$, part.kind_name, part.of_table, part.of_kind);

        -- Writes over records where the checks found them. Without the setting, a server that
        -- believes the table to be empty reads all of the tenant's records instead; the setting is
        -- made here, because one of the function itself costs five times as much. What the sweep's
        -- index holds is kept while it is at most ten seconds early.
        EXECUTE format($function$
            CREATE FUNCTION move_%1$s(
                whose text, now_ms bigint, ok boolean[], stamp bigint, at tid[], there put_row[]
            ) RETURNS boolean LANGUAGE plpgsql AS $body$
            DECLARE
                written bigint;
                setting text := set_config('enable_indexscan', 'off', true);
            BEGIN
                UPDATE %2$I AS kept SET
                    state = r_state, fingerprint = r_fingerprint, rev = r_rev, fence = r_fence,
                    last_fence = r_last_fence, token = r_token, attempt = r_attempt,
                    priority = r_priority, created_at = r_created_at, updated_at = now_ms,
                    due_at = r_due_at, expires_at = r_expires_at, sweep_at = r_sweep_at,
                    sweep_from = CASE
                        WHEN kept.sweep_from BETWEEN r_sweep_from - 10000 AND r_sweep_from
                            THEN kept.sweep_from
                        ELSE r_sweep_from
                    END,
                    outcome_id = CASE r_beside & 3
                        WHEN 0 THEN kept.outcome_id WHEN 1 THEN r_rev
                    END,
                    payload_id = CASE r_beside & 12
                        WHEN 0 THEN kept.payload_id WHEN 4 THEN r_rev
                    END,
                    outcome = r_outcome, has_payload = r_has_payload, rest = r_rest
                FROM resolved(now_ms, ok, stamp, there)
                -- The place alone would do; the name is there so that nothing else is written.
                WHERE kept.ctid = at[r_checked] AND kept.name = r_name;
                GET DIAGNOSTICS written = ROW_COUNT;
                setting := set_config('enable_indexscan', 'on', true);
                IF written <> cardinality(there) AND written <> (
                    SELECT count(*) FROM unnest(there) AS p
                    WHERE ok[p.batch] AND at[p.checked] IS NOT NULL
                ) THEN
                    RAISE EXCEPTION 'a record is written twice in one group, or was moved'
                        USING ERRCODE = 'cardinality_violation';
                END IF;
                RETURN true;
            END
            $body$
        $function$, part.kind_name, part.of_table, part.of_kind);

        -- Drops bytes that their records are about to have no more, before the records forget them.
        EXECUTE format($function$
            CREATE FUNCTION drop_%1$s(
                whose text, ok boolean[], drops smallint, there put_row[], others put_row[]
            ) RETURNS boolean LANGUAGE plpgsql AS $body$
            BEGIN
                IF drops & 1 <> 0 THEN
                    DELETE FROM outcomes AS o WHERE o.id = ANY (ARRAY(
                        SELECT r.outcome_id FROM unnest(there || others) AS p
                        CROSS JOIN LATERAL (
                            SELECT found.outcome_id FROM %2$I AS found
                            WHERE found.tenant = whose AND found.kind = %3$s
                                AND found.name = p.name
                            LIMIT 1
                        ) AS r
                        WHERE ok[p.batch] AND p.beside & 3 <> 0 AND r.outcome_id IS NOT NULL
                    ));
                END IF;
                IF drops & 2 <> 0 THEN
                    DELETE FROM payloads AS o WHERE o.id = ANY (ARRAY(
                        SELECT r.payload_id FROM unnest(there || others) AS p
                        CROSS JOIN LATERAL (
                            SELECT found.payload_id FROM %2$I AS found
                            WHERE found.tenant = whose AND found.kind = %3$s
                                AND found.name = p.name
                            LIMIT 1
                        ) AS r
                        WHERE ok[p.batch] AND p.beside & 12 <> 0 AND r.payload_id IS NOT NULL
                    ));
                END IF;
                RETURN true;
            END
            $body$
        $function$, part.kind_name, part.of_table, part.of_kind);

        EXECUTE format($function$
            CREATE FUNCTION insert_%1$s(
                whose text, now_ms bigint, ok boolean[], stamp bigint, at tid[], fresh put_row[]
            ) RETURNS boolean LANGUAGE plpgsql AS $body$
            BEGIN
                INSERT INTO %2$I (
                    tenant, kind, name, state, fingerprint, rev, fence, last_fence, token, attempt,
                    priority, created_at, updated_at, due_at, expires_at, sweep_at, sweep_from,
                    outcome_id, payload_id, outcome, has_payload, rest
                )
                SELECT
                    whose, %3$s, r_name, r_state, r_fingerprint, r_rev, r_fence, r_last_fence,
                    r_token, r_attempt, r_priority, r_created_at, now_ms, r_due_at, r_expires_at,
                    r_sweep_at, r_sweep_from, CASE WHEN r_beside & 1 <> 0 THEN r_rev END,
                    CASE WHEN r_beside & 4 <> 0 THEN r_rev END, r_outcome, r_has_payload, r_rest
                FROM resolved(now_ms, ok, stamp, fresh)
                WHERE at[r_checked] IS NULL;
                RETURN true;
            END
            $body$
        $function$, part.kind_name, part.of_table, part.of_kind);

        -- Drops records with all that lies beside them.
        EXECUTE format($function$
            CREATE FUNCTION delete_%1$s(whose text, ok boolean[], gone gone_row[])
            RETURNS boolean LANGUAGE plpgsql AS $body$
            DECLARE
                one gone_row;
                was record;
            BEGIN
                FOREACH one IN ARRAY gone LOOP
                    CONTINUE WHEN NOT ok[one.batch];
                    DELETE FROM %2$I AS r
                    WHERE r.tenant = whose AND r.kind = %3$s AND r.name = one.name
                    RETURNING r.outcome_id, r.payload_id INTO was;
                    IF was.outcome_id IS NOT NULL THEN
                        DELETE FROM outcomes AS o WHERE o.id = was.outcome_id;
                    END IF;
                    IF was.payload_id IS NOT NULL THEN
                        DELETE FROM payloads AS o WHERE o.id = was.payload_id;
                    END IF;
                END LOOP;
                RETURN true;
            END
            $body$
        $function$, part.kind_name, part.of_table, part.of_kind);

        -- Writes the records of a slice. Of `others` the checks have found out which are there.
        EXECUTE format($function$
            CREATE FUNCTION put_%1$s(
                whose text, now_ms bigint, ok boolean[], stamp bigint, at tid[], drops smallint,
                gone gone_row[], fresh put_row[], there put_row[], others put_row[]
            ) RETURNS boolean LANGUAGE plpgsql AS $body$
            DECLARE
                done boolean;
            BEGIN
                IF drops <> 0 THEN
                    done := drop_%1$s(whose, ok, drops, there, others);
                END IF;
                IF gone IS NOT NULL THEN
                    done := delete_%1$s(whose, ok, gone);
                END IF;
                IF fresh IS NOT NULL THEN
                    done := insert_%1$s(whose, now_ms, ok, stamp, at, fresh);
                END IF;
                IF there IS NOT NULL THEN
                    done := move_%1$s(whose, now_ms, ok, stamp, at, there);
                END IF;
                IF others IS NOT NULL THEN
                    done := insert_%1$s(whose, now_ms, ok, stamp, at, others);
                    done := move_%1$s(whose, now_ms, ok, stamp, at, others);
                END IF;
                RETURN true;
            END
            $body$
        $function$, part.kind_name, part.of_table, part.of_kind);
    END LOOP;
END
$make$;

-- Looks records of one tenant and one kind up.
CREATE FUNCTION look_kind(
    whose text, of_kind smallint, names text[], payloads boolean[], places bigint[]
) RETURNS SETOF looked LANGUAGE plpgsql STABLE AS $$
BEGIN
    CASE of_kind
        WHEN 0 THEN RETURN QUERY SELECT * FROM look_request(whose, names, payloads, places);
        WHEN 1 THEN RETURN QUERY SELECT * FROM look_job(whose, names, payloads, places);
        WHEN 2 THEN RETURN QUERY SELECT * FROM look_event(whose, names, payloads, places);
        ELSE RETURN QUERY SELECT * FROM look_append(whose, names, payloads, places);
    END CASE;
END
$$;

-- What is there where a check of a slice failed.
CREATE FUNCTION look_failed(s slice_row, failed bigint[])
RETURNS SETOF looked LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT * FROM look_kind(
        s.tenant, s.kind,
        ARRAY(SELECT c.name FROM unnest(s.checks) AS c WHERE c.place = ANY (failed)),
        NULL,
        ARRAY(SELECT c.place::bigint FROM unnest(s.checks) AS c WHERE c.place = ANY (failed))
    );
    RETURN QUERY SELECT * FROM look_marks(
        s.tenant,
        ARRAY(SELECT c.name FROM unnest(s.stands) AS c WHERE -c.place = ANY (failed)),
        ARRAY(SELECT -c.place::bigint FROM unnest(s.stands) AS c WHERE -c.place = ANY (failed))
    );
END
$$;

-- The maximum keeps a mark from moving back even if someone's SQL went around the locks. A mark that
-- keeps its value is told by its digest, so that the value is not read.
CREATE FUNCTION put_marks(whose text, now_ms bigint, ok boolean[], rows mark_row[])
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO marks AS kept (tenant, name, position, updated_at, seal, digest, value)
    SELECT
        whose, one.name, one.position, now_ms,
        mark_seal(one.base, one.position, now_ms, one.digest), one.digest, one.value
    FROM (
        SELECT
            w.name, greatest(w.position, m.position) AS position, w.value, w.base,
            CASE WHEN w.keeps THEN m.digest ELSE w.digest END AS digest
        FROM unnest(rows) AS w
        LEFT JOIN LATERAL (
            SELECT found.position, found.digest FROM marks AS found
            WHERE found.tenant = whose AND found.name = w.name
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
    RETURN true;
END
$$;

-- Applies a group. The first row is the answer: now, what became of each batch (0 applied, 1 left
-- because a lock was held, 2 applied before, 3 refused), rev and fence of those applied before, the
-- checks that failed (records from 1, marks from -1 down), and what was drawn: the stamp of a put is
-- that and its turn. The other rows show what is there where a check failed; `place` names the check.
-- `turns` is the last turn of all.
CREATE FUNCTION apply_group(
    batches integer, locks bigint[], lock_batch integer[], token_batch integer[], tokens bytea[],
    purge_ms bigint, turns integer, slices slice_row[],
    OUT now_ms bigint, OUT verdicts smallint[], OUT again_rev bigint[], OUT again_fence bigint[],
    OUT failed bigint[], OUT stamp bigint, OUT there looked
) RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
    ok boolean[] := array_fill(true, ARRAY[batches]);
    s slice_row;
    n integer;
    missed integer[];
    result record;
    seen seen_row;
    at tid[];
    -- What may have to be dropped beside the records that checks found.
    held smallint := 0;
    stand stand_row;
    failed_stands stand_row[];
    wanting boolean;
    notified text;
    -- Assigned, not performed: an expression costs a tenth of a query.
    tenant text;
    done boolean;
BEGIN
    verdicts := array_fill(0::smallint, ARRAY[batches]);
    again_rev := array_fill(NULL::bigint, ARRAY[batches]);
    again_fence := again_rev;
    -- A statement of its own: whatever the holders before us committed is seen by the next.
    missed := ARRAY(
        SELECT one.batch FROM unnest(locks, lock_batch) AS one (lock, batch)
        WHERE NOT pg_try_advisory_xact_lock(one.lock)
    );
    FOREACH n IN ARRAY missed LOOP
        ok[n] := false;
        verdicts[n] := 1;
    END LOOP;
    -- Now is read once everything is locked: a slow writer with an old clock would shorten or
    -- lengthen leases that others have judged since.
    now_ms := store_now_ms();

    -- A batch that comes again is known by its token, and changes nothing.
    IF cardinality(tokens) > 0 THEN
        missed := ARRAY(
            SELECT one.batch FROM unnest(token_batch, tokens) AS one (batch, token)
            WHERE EXISTS (SELECT FROM tokens AS t WHERE t.token = one.token OFFSET 0)
        );
        FOREACH n IN ARRAY missed LOOP
            IF ok[n] THEN
                ok[n] := false;
                verdicts[n] := 2;
            END IF;
        END LOOP;
    END IF;

    FOREACH s IN ARRAY slices LOOP
        CONTINUE WHEN s.checks IS NULL AND s.stands IS NULL;
        tenant := set_config('onceward.tenant', s.tenant, true);
        IF s.checks IS NOT NULL THEN
            CASE s.kind
                WHEN 0 THEN result := check_request(s.tenant, s.checks);
                WHEN 1 THEN result := check_job(s.tenant, s.checks);
                WHEN 2 THEN result := check_event(s.tenant, s.checks);
                ELSE result := check_append(s.tenant, s.checks);
            END CASE;
            at := at || result.at;
            held := held | result.outcomes::integer::smallint
                | (result.payloads::integer * 2)::smallint;
            wanting := result.wanting;
            IF result.seen IS NOT NULL THEN
                FOREACH seen IN ARRAY result.seen LOOP
                    CONTINUE WHEN verdicts[seen.batch] NOT IN (0, 3);
                    ok[seen.batch] := false;
                    IF seen.again THEN
                        verdicts[seen.batch] := 2;
                        again_rev[seen.batch] := seen.rev;
                        again_fence[seen.batch] := seen.fence;
                    ELSE
                        verdicts[seen.batch] := 3;
                        failed := failed || seen.place::bigint;
                    END IF;
                END LOOP;
            END IF;
        END IF;
        IF s.stands IS NOT NULL THEN
            failed_stands := ARRAY(
                SELECT one
                FROM unnest(s.stands) AS one
                LEFT JOIN LATERAL (
                    SELECT found.position FROM marks AS found
                    WHERE found.tenant = s.tenant AND found.name = one.name
                    LIMIT 1
                ) AS m ON true
                WHERE NOT CASE one.rule
                    WHEN 0 THEN coalesce(m.position, 0) = one.number
                    ELSE coalesce(m.position, 0) <= one.number
                END
            );
            FOREACH stand IN ARRAY failed_stands LOOP
                CONTINUE WHEN verdicts[stand.batch] NOT IN (0, 3);
                ok[stand.batch] := false;
                verdicts[stand.batch] := 3;
                failed := failed || (-stand.place)::bigint;
            END LOOP;
        END IF;
    END LOOP;

    IF turns >= 4096 THEN
        RAISE EXCEPTION 'a group has more writes than one draw has numbers: %', turns
            USING ERRCODE = 'program_limit_exceeded';
    END IF;
    -- A group that writes nothing takes no lock of a table either.
    IF true = ANY (ok) THEN
        -- Drawn after the locks: nobody else can have drawn for the same key since. Numbers that are
        -- not used, or are lost in a rollback or a crash, leave a gap and no harm.
        stamp := nextval('stamps');
        FOREACH s IN ARRAY slices LOOP
            tenant := set_config('onceward.tenant', s.tenant, true);
            CASE s.kind
                WHEN 0 THEN
                    done := put_request(
                        s.tenant, now_ms, ok, stamp, at, s.drops & held, s.gone, s.fresh, s.there,
                        s.others);
                WHEN 1 THEN
                    done := put_job(
                        s.tenant, now_ms, ok, stamp, at, s.drops & held, s.gone, s.fresh, s.there,
                        s.others);
                WHEN 2 THEN
                    done := put_event(
                        s.tenant, now_ms, ok, stamp, at, s.drops & held, s.gone, s.fresh, s.there,
                        s.others);
                WHEN 3 THEN
                    done := put_append(
                        s.tenant, now_ms, ok, stamp, at, s.drops & held, s.gone, s.fresh, s.there,
                        s.others);
                ELSE
                    NULL;
            END CASE;
            IF s.outcomes IS NOT NULL THEN
                INSERT INTO outcomes (id, tenant, bytes)
                SELECT stamp + one.turn, s.tenant, one.bytes FROM unnest(s.outcomes) AS one
                WHERE ok[one.batch];
            END IF;
            IF s.payloads IS NOT NULL THEN
                INSERT INTO payloads (id, tenant, bytes, seal)
                SELECT stamp + one.turn, s.tenant, one.bytes, one.seal
                FROM unnest(s.payloads) AS one
                WHERE ok[one.batch];
            END IF;
            IF s.marks IS NOT NULL THEN
                done := put_marks(s.tenant, now_ms, ok, s.marks);
            END IF;
            IF s.entries IS NOT NULL THEN
                INSERT INTO audit (
                    id, tenant, at, action, subject, key_hash, payload_hash, version_before,
                    version_after, fence, actor, request_id, correlation_id, detail
                )
                SELECT
                    stamp + one.turn, s.tenant, now_ms, one.action, one.subject, one.key_hash,
                    one.payload_hash, one.version_before, one.version_after, one.fence, one.actor,
                    one.request_id, one.correlation_id, one.detail
                FROM unnest(s.entries) AS one
                WHERE ok[one.batch];
            END IF;
        END LOOP;
        IF cardinality(tokens) > 0 THEN
            -- No conflict clause: a token that is there already must fail the group, not pass unseen.
            INSERT INTO tokens (token, at)
            SELECT one.token, now_ms FROM unnest(token_batch, tokens) AS one (batch, token)
            WHERE ok[one.batch];
        END IF;
    END IF;
    IF purge_ms IS NOT NULL THEN
        -- Skips what another process prunes at the same time.
        DELETE FROM tokens WHERE token IN (
            SELECT old.token FROM tokens AS old WHERE old.at < now_ms - purge_ms
            ORDER BY old.at LIMIT 1024 FOR UPDATE SKIP LOCKED
        );
    END IF;

    -- One bell for all that someone in another process waits for. It rings with the commit. Who marks
    -- a key after the look, which came after the locks, finds its lock held, and looks again.
    IF wanting IS NULL THEN
        wanting := EXISTS (SELECT FROM wanted);
    END IF;
    IF wanting THEN
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
    END IF;

    there := NULL;
    RETURN NEXT;
    IF failed IS NOT NULL THEN
        FOREACH s IN ARRAY slices LOOP
            CONTINUE WHEN s.checks IS NULL AND s.stands IS NULL;
            tenant := set_config('onceward.tenant', s.tenant, true);
            RETURN QUERY
                SELECT
                    NULL::bigint, NULL::smallint[], NULL::bigint[], NULL::bigint[], NULL::bigint[],
                    NULL::bigint, shown
                FROM look_failed(s, failed) AS shown;
        END LOOP;
    END IF;
    tenant := set_config('onceward.tenant', '', true);
END
$$;
