-- Loads and lists. Whatever shows what a tenant's row holds runs under that tenant.
--
-- A sweep, a worker and an operator have to find rows of tenants that they don't know beforehand.
-- For these, and for nothing else, there are functions that look across tenants: their names end in
-- `_places`, they belong to onceward_lister, which may read only the columns that say where a row
-- is (key, time, number), and they return only those. The rows themselves are then read under their
-- tenants, one after the other.

-- Records with what lies beside them and marks, all of one snapshot, in one call. The first row
-- holds now, at place 0, in `mark_updated_at`.
CREATE FUNCTION load(
    tenants text[], kinds smallint[], names text[], payloads boolean[],
    mark_tenants text[], mark_names text[]
) RETURNS SETOF looked LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    slice record;
    first looked;
BEGIN
    first.place := 0;
    first.mark_updated_at := store_now_ms();
    RETURN NEXT first;
    FOR slice IN
        SELECT
            one.tenant, one.kind, array_agg(one.name) AS names, array_agg(one.payload) AS payloads,
            array_agg(one.place) AS places
        FROM unnest(tenants, kinds, names, payloads) WITH ORDINALITY
            AS one (tenant, kind, name, payload, place)
        GROUP BY one.tenant, one.kind
    LOOP
        PERFORM set_config('onceward.tenant', slice.tenant, true);
        RETURN QUERY SELECT * FROM look_kind(
            slice.tenant, slice.kind, slice.names, slice.payloads, slice.places
        );
    END LOOP;
    FOR slice IN
        SELECT one.tenant, array_agg(one.name) AS names, array_agg(-one.place) AS places
        FROM unnest(mark_tenants, mark_names) WITH ORDINALITY AS one (tenant, name, place)
        GROUP BY one.tenant
    LOOP
        PERFORM set_config('onceward.tenant', slice.tenant, true);
        RETURN QUERY SELECT * FROM look_marks(slice.tenant, slice.names, slice.places);
    END LOOP;
    PERFORM set_config('onceward.tenant', '', true);
END
$$;

-- Where records are that the sweep has to look at, longest due first. The index knows only an
-- instant that is not later than theirs: as many as are asked for, in its order, tell how far it has
-- to be read, and those are put in order.
CREATE FUNCTION sweep_places(
    after_at bigint, after_tenant text, after_kind smallint, after_name text, until bigint,
    most bigint
) RETURNS TABLE (tenant text, kind smallint, name text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
    SELECT r.tenant, r.kind, r.name
    FROM records AS r
    WHERE r.sweep_from <= (
            SELECT max(one.sweep_at) FROM (
                SELECT early.sweep_at FROM records AS early
                WHERE early.sweep_from <= until AND early.sweep_at <= until
                    AND (early.sweep_at, early.tenant, early.kind, early.name)
                        > (after_at, after_tenant, after_kind, after_name)
                ORDER BY early.sweep_from
                LIMIT most
            ) AS one
        )
        AND r.sweep_at <= until
        AND (r.sweep_at, r.tenant, r.kind, r.name)
            > (after_at, after_tenant, after_kind, after_name)
    ORDER BY r.sweep_at, r.tenant, r.kind, r.name
    LIMIT most
$$;

-- Where jobs are that may be taken: the priorities that the queue has, one index probe each, and of
-- each a range of instants, so that a heap of jobs for tomorrow costs nothing today. Only the
-- cursor's own priority starts behind the cursor. In plpgsql, because its plan is kept. The whole key
-- of the index is named in the order, also what is the same for all: under row-level security the
-- server does not conclude that from a condition, and would sort all that is due.
CREATE FUNCTION due_places(
    queue text, after_priority smallint, after_at bigint, after_tenant text, after_name text,
    until bigint, most bigint
) RETURNS TABLE (whose text, at tid)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    of_queue bigint := hashtextextended(queue, 0);
    -- The cursor's own, and then those below it.
    of_priority smallint := after_priority;
    start_at bigint := after_at;
    start_tenant text := after_tenant;
    start_name text := after_name;
    found_rows bigint;
BEGIN
    LOOP
        RETURN QUERY
            SELECT one.tenant, one.ctid FROM records_job AS one
            WHERE hashtextextended(split_part(one.name, ':', 1), 0) = of_queue
                AND split_part(one.name, ':', 1) = queue
                AND one.state IN (0, 1, 3) AND one.due_at IS NOT NULL
                AND one.priority = of_priority AND one.due_at <= until
                AND (one.due_at, one.tenant, one.name) > (start_at, start_tenant, start_name)
            ORDER BY
                hashtextextended(split_part(one.name, ':', 1), 0), one.priority, one.due_at,
                one.tenant, one.name
            LIMIT most;
        GET DIAGNOSTICS found_rows = ROW_COUNT;
        most := most - found_rows;
        EXIT WHEN most <= 0;
        of_priority := (
            SELECT one.priority FROM records_job AS one
            WHERE hashtextextended(split_part(one.name, ':', 1), 0) = of_queue
                AND split_part(one.name, ':', 1) = queue
                AND one.state IN (0, 1, 3) AND one.due_at IS NOT NULL
                AND one.priority < of_priority
            ORDER BY
                hashtextextended(split_part(one.name, ':', 1), 0) DESC, one.priority DESC
            LIMIT 1
        );
        EXIT WHEN of_priority IS NULL;
        start_at := -1;
        start_tenant := '';
        start_name := '';
    END LOOP;
END
$$;

-- Jobs that may be taken, with payloads of at most `small` bytes: more than that would be read in
-- vain where others take them. Closes no race: two takers see the same job, and its rev lets one
-- have it. The first row holds now, as that of a load does. All is of one snapshot, in which a place
-- stays what it is.
CREATE FUNCTION due(
    queue text, after_priority smallint, after_at bigint, after_tenant text, after_name text,
    most bigint, small integer
) RETURNS SETOF looked LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    slice record;
    first looked;
BEGIN
    first.place := 0;
    first.mark_updated_at := store_now_ms();
    RETURN NEXT first;
    FOR slice IN
        SELECT one.whose, array_agg(one.at) AS at, array_agg(one.place) AS places
        FROM due_places(
            queue, after_priority, after_at, after_tenant, after_name, first.mark_updated_at, most
        ) WITH ORDINALITY AS one (whose, at, place)
        GROUP BY one.whose
    LOOP
        PERFORM set_config('onceward.tenant', slice.whose, true);
        RETURN QUERY
            SELECT
                r.tenant, r.kind, r.name, r.state, r.fingerprint, r.rev, r.fence, r.last_fence,
                r.token, r.attempt, r.priority, r.created_at, r.updated_at, r.due_at,
                r.expires_at, r.sweep_at, r.outcome, r.has_payload, r.rest,
                one.place, NULL::bytea, p.bytes, p.seal,
                NULL::bigint, NULL::bigint, NULL::bytea, NULL::bytea, NULL::bytea
            FROM unnest(slice.at, slice.places) AS one (at, place)
            CROSS JOIN LATERAL (
                SELECT * FROM records_job AS found WHERE found.ctid = one.at LIMIT 1
            ) AS r
            LEFT JOIN LATERAL (
                SELECT found.bytes, found.seal FROM payloads AS found
                WHERE found.id = r.payload_id AND found.tenant = slice.whose
                    AND octet_length(found.bytes) <= small
                LIMIT 1
            ) AS p ON true;
    END LOOP;
    PERFORM set_config('onceward.tenant', '', true);
END
$$;

-- Where all tenants' records are, in the order of their keys.
CREATE FUNCTION record_places(
    after_tenant text, after_kind smallint, after_name text, of_scope text, of_state smallint,
    most bigint
) RETURNS TABLE (tenant text, kind smallint, name text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
    SELECT r.tenant, r.kind, r.name
    FROM records AS r
    WHERE (r.tenant, r.kind, r.name) > (after_tenant, after_kind, after_name)
        AND (of_scope IS NULL OR split_part(r.name, ':', 1) = of_scope)
        AND (of_state IS NULL OR r.state = of_state)
    ORDER BY r.tenant, r.kind, r.name
    LIMIT most
$$;

-- Where all tenants' entries are, in the order of their transactions. `settled` leaves out what a
-- transaction that still runs could be followed by something before.
CREATE FUNCTION audit_places(
    after_xact xid8, after_id bigint, of_subject text, of_key_hash text, of_action text,
    from_at bigint, to_at bigint, settled boolean, most bigint
) RETURNS TABLE (tenant text, xact xid8, id bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT a.tenant, a.xact, a.id
    FROM audit AS a
    WHERE (a.xact, a.id) > (after_xact, after_id)
        AND (of_subject IS NULL OR a.subject = of_subject)
        AND (of_key_hash IS NULL OR a.key_hash = of_key_hash)
        AND (of_action IS NULL OR a.action = of_action)
        AND (from_at IS NULL OR a.at >= from_at) AND (to_at IS NULL OR a.at < to_at)
        AND (NOT settled OR a.xact < pg_snapshot_xmin(pg_current_snapshot()))
    ORDER BY a.xact, a.id
    LIMIT most
$$;

-- The records at these places, each read under its tenant, in the order of the places.
CREATE FUNCTION records_at(tenants text[], kinds smallint[], names text[])
RETURNS SETOF looked LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT AS $$
DECLARE
    slice record;
BEGIN
    FOR slice IN
        SELECT
            one.tenant, array_agg(one.kind) AS kinds, array_agg(one.name) AS names,
            array_agg(one.place) AS places
        FROM unnest(tenants, kinds, names) WITH ORDINALITY AS one (tenant, kind, name, place)
        GROUP BY one.tenant
    LOOP
        PERFORM set_config('onceward.tenant', slice.tenant, true);
        RETURN QUERY
            SELECT
                r.tenant, r.kind, r.name, r.state, r.fingerprint, r.rev, r.fence, r.last_fence,
                r.token, r.attempt, r.priority, r.created_at, r.updated_at, r.due_at,
                r.expires_at, r.sweep_at, r.outcome, r.has_payload, r.rest,
                one.place, NULL::bytea, NULL::bytea, NULL::bytea,
                NULL::bigint, NULL::bigint, NULL::bytea, NULL::bytea, NULL::bytea
            FROM unnest(slice.kinds, slice.names, slice.places) AS one (kind, name, place)
            CROSS JOIN LATERAL (
                SELECT * FROM records AS found
                WHERE found.tenant = slice.tenant AND found.kind = one.kind
                    AND found.name = one.name
                LIMIT 1
            ) AS r;
    END LOOP;
    PERFORM set_config('onceward.tenant', '', true);
END
$$;

-- The entries at these places, each read under its tenant, in the order of the places.
CREATE FUNCTION audit_at(tenants text[], xacts xid8[], ids bigint[])
RETURNS SETOF audit LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT AS $$
DECLARE
    slice record;
BEGIN
    FOR slice IN
        SELECT one.tenant, array_agg(one.xact) AS xacts, array_agg(one.id) AS ids
        FROM unnest(tenants, xacts, ids) AS one (tenant, xact, id)
        GROUP BY one.tenant
    LOOP
        PERFORM set_config('onceward.tenant', slice.tenant, true);
        RETURN QUERY
            SELECT a.* FROM unnest(slice.xacts, slice.ids) AS one (xact, id)
            CROSS JOIN LATERAL (
                SELECT * FROM audit AS found WHERE found.xact = one.xact AND found.id = one.id
                LIMIT 1
            ) AS a;
    END LOOP;
    PERFORM set_config('onceward.tenant', '', true);
END
$$;

-- Drops what retention has let go of: entries of the tenant that is set, at or before a place and not
-- younger than an instant. What goes without retention's anchor is missed by the chain of seals.
CREATE FUNCTION prune_audit(through_xact xid8, through_id bigint, until bigint)
RETURNS void LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    DELETE FROM audit AS a
    WHERE a.tenant = current_tenant() AND (a.xact, a.id) <= (through_xact, through_id)
        AND a.at <= until
$$;

-- Marks that someone in another process waits for this key, by the number of its lock.
CREATE FUNCTION want(locks bigint[]) RETURNS void LANGUAGE sql VOLATILE
SET search_path FROM CURRENT AS $$
    -- In order: two processes that mark the same keys at once must not wait for each other.
    INSERT INTO wanted (lock) SELECT DISTINCT lock FROM unnest(locks) AS lock ORDER BY lock
    ON CONFLICT DO NOTHING
$$;

-- Whether a key may have changed since it was seen running: it is not running any more, or a group
-- that did not see the mark of `want` is still at it (2: look again).
CREATE FUNCTION wanted_state(whose text, of_kind smallint, of_name text, of_lock bigint)
RETURNS smallint LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT AS $$
DECLARE
    running boolean;
BEGIN
    IF NOT pg_try_advisory_xact_lock_shared(of_lock) THEN
        RETURN 2;
    END IF;
    PERFORM set_config('onceward.tenant', whose, true);
    running := EXISTS (
        SELECT FROM records AS r
        WHERE r.tenant = whose AND r.kind = of_kind AND r.name = of_name AND r.state = 1
    );
    PERFORM set_config('onceward.tenant', '', true);
    RETURN running::integer::smallint;
END
$$;
