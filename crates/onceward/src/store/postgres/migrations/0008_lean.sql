-- A shorter way for groups in which all is well, of batches that ask one thing of one record and
-- write that record, with entries and nothing else: claims, completions, renewals, enqueued and
-- taken jobs. The third migration's group looks at everything before it writes and can tell what is
-- there; here a record that must not be there is simply inserted, and its unique key tells.
--
-- All of the group is applied, or nothing, and then nobody says why: the program sends the same
-- slices through `apply_group`, which does. That is so when a key is locked by someone else, a
-- condition fails, a batch comes again, or bytes beside a record would have to be dropped first.
-- Locks, now, stamps, tenants and the bell are as they are there, and so are the rows.

-- Where the records of a slice are that must be there (NULL for the others), and whether each of
-- them is as its check says. A batch that comes again finds its own token and does not pass.
DO $make$
DECLARE
    part record;
BEGIN
    FOR part IN
        SELECT of_kind, 'records_' || kind_name AS of_table, kind_name
        FROM unnest(ARRAY['request', 'job', 'event', 'append'])
            WITH ORDINALITY AS one (kind_name, place), LATERAL (SELECT place - 1) AS k (of_kind)
    LOOP
        EXECUTE format($function$
            CREATE FUNCTION find_%1$s(
                whose text, checks check_row[], drops smallint, OUT at tid[], OUT as_said boolean
            ) LANGUAGE plpgsql AS $body$
            BEGIN
                SELECT array_agg(r.at), bool_and(one.rule = 1 OR r.at IS NOT NULL)
                INTO at, as_said
                FROM unnest(checks) AS one
                LEFT JOIN LATERAL (
                    SELECT
                        found.ctid AS at, found.outcome_id, found.payload_id, found.rev,
                        found.fence, found.token
                    FROM %2$I AS found
                    WHERE one.rule <> 1
                        AND found.tenant = whose AND found.kind = %3$s AND found.name = one.name
                    LIMIT 1
                ) AS r ON
                    CASE one.rule WHEN 2 THEN r.rev = one.number ELSE r.fence = one.number END
                    AND r.token <> one.token
                    AND (drops & 1 = 0 OR r.outcome_id IS NULL)
                    AND (drops & 2 = 0 OR r.payload_id IS NULL);
            END
            $body$
        $function$, part.kind_name, part.of_table, part.of_kind);
    END LOOP;
END
$make$;

-- Applies such a group. The stamp of a put is what was drawn and its turn; where that is NULL,
-- nothing was applied. `turns` is the last turn of all.
CREATE FUNCTION apply_lean(
    batches integer, locks bigint[], turns integer, slices slice_row[],
    OUT now_ms bigint, OUT stamp bigint
) LANGUAGE plpgsql AS $$
DECLARE
    ok boolean[] := array_fill(true, ARRAY[batches]);
    s slice_row;
    -- Whether all is well so far.
    well boolean;
    inserts boolean := false;
    drawn bigint;
    at tid[];
    seen record;
    -- Assigned, not performed: an expression costs a tenth of a query.
    tenant text;
    done boolean;
BEGIN
    IF turns >= 4096 THEN
        RAISE EXCEPTION 'a group has more writes than one draw has numbers: %', turns
            USING ERRCODE = 'program_limit_exceeded';
    END IF;
    -- A statement of its own: whatever the holders before us committed is seen by the next.
    well := NOT EXISTS (
        SELECT FROM unnest(locks) AS one (lock) WHERE NOT pg_try_advisory_xact_lock(one.lock)
    );
    now_ms := store_now_ms();

    -- All looks before the first write: what is refused here leaves nothing to undo.
    FOREACH s IN ARRAY slices LOOP
        EXIT WHEN NOT well;
        -- Entries alone.
        CONTINUE WHEN s.checks IS NULL;
        inserts := inserts OR s.fresh IS NOT NULL;
        IF s.there IS NULL THEN
            at := at || array_fill(NULL::tid, ARRAY[cardinality(s.checks)]);
            CONTINUE;
        END IF;
        tenant := set_config('onceward.tenant', s.tenant, true);
        CASE s.kind
            WHEN 0 THEN seen := find_request(s.tenant, s.checks, s.drops);
            WHEN 1 THEN seen := find_job(s.tenant, s.checks, s.drops);
            WHEN 2 THEN seen := find_event(s.tenant, s.checks, s.drops);
            ELSE seen := find_append(s.tenant, s.checks, s.drops);
        END CASE;
        at := at || seen.at;
        well := seen.as_said;
    END LOOP;

    IF well THEN
        drawn := nextval('stamps');
    END IF;
    IF well AND inserts THEN
        -- A block that can be undone alone: the server's log is spared an error that is none.
        BEGIN
            FOREACH s IN ARRAY slices LOOP
                CONTINUE WHEN s.fresh IS NULL;
                tenant := set_config('onceward.tenant', s.tenant, true);
                CASE s.kind
                    WHEN 0 THEN done := insert_request(s.tenant, now_ms, ok, drawn, at, s.fresh);
                    WHEN 1 THEN done := insert_job(s.tenant, now_ms, ok, drawn, at, s.fresh);
                    WHEN 2 THEN done := insert_event(s.tenant, now_ms, ok, drawn, at, s.fresh);
                    ELSE done := insert_append(s.tenant, now_ms, ok, drawn, at, s.fresh);
                END CASE;
            END LOOP;
        EXCEPTION
            WHEN unique_violation THEN
                well := false;
        END;
    END IF;
    IF well THEN
        FOREACH s IN ARRAY slices LOOP
            tenant := set_config('onceward.tenant', s.tenant, true);
            IF s.there IS NOT NULL THEN
                CASE s.kind
                    WHEN 0 THEN done := move_request(s.tenant, now_ms, ok, drawn, at, s.there);
                    WHEN 1 THEN done := move_job(s.tenant, now_ms, ok, drawn, at, s.there);
                    WHEN 2 THEN done := move_event(s.tenant, now_ms, ok, drawn, at, s.there);
                    ELSE done := move_append(s.tenant, now_ms, ok, drawn, at, s.there);
                END CASE;
            END IF;
            IF s.outcomes IS NOT NULL THEN
                INSERT INTO outcomes (id, tenant, bytes)
                SELECT drawn + one.turn, s.tenant, one.bytes FROM unnest(s.outcomes) AS one;
            END IF;
            IF s.payloads IS NOT NULL THEN
                INSERT INTO payloads (id, tenant, bytes, seal)
                SELECT drawn + one.turn, s.tenant, one.bytes, one.seal
                FROM unnest(s.payloads) AS one;
            END IF;
            IF s.entries IS NOT NULL THEN
                INSERT INTO audit (
                    id, tenant, at, action, subject, key_hash, payload_hash, version_before,
                    version_after, fence, actor, request_id, correlation_id, detail
                )
                SELECT
                    drawn + one.turn, s.tenant, now_ms, one.action, one.subject, one.key_hash,
                    one.payload_hash, one.version_before, one.version_after, one.fence, one.actor,
                    one.request_id, one.correlation_id, one.detail
                FROM unnest(s.entries) AS one;
            END IF;
        END LOOP;
        -- One bell for all that someone in another process waits for, as in `apply_group`.
        IF EXISTS (SELECT FROM wanted) THEN
            DELETE FROM wanted AS w WHERE w.lock = ANY (locks);
            IF FOUND THEN
                -- Too many to name: everyone looks.
                PERFORM pg_notify(current_schema(), CASE
                    WHEN octet_length(array_to_string(locks, ' ')) < 7900
                        THEN array_to_string(locks, ' ') ELSE ''
                END);
            END IF;
        END IF;
        stamp := drawn;
    END IF;
    tenant := set_config('onceward.tenant', '', true);
END
$$;
