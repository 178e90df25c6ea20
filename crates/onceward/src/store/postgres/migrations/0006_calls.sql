-- What an application in any language calls in its own transaction: complete, fail, enqueue. Its
-- own rows and ours commit together, or neither. The permit is the text that the gateway sends in
-- `Onceward-Permit`, or that a claim over the control API returned.
--
-- They take the key's lock, as the engine does, and keep it until the transaction ends; meanwhile
-- the engine finds the key locked and goes around it. A permit that is not valid any more raises,
-- so that the application's transaction fails with it. They belong to onceward_engine, which
-- row-level security binds, and set the tenant that the permit names until they return.

-- Errors of these functions, for programs: OW001 the permit is lost, OW002 it can't be read,
-- OW003 it needs what only the control API does, OW004 the key was used with another payload.

-- The parts of a permit. Whether it is valid is decided by its fence.
CREATE FUNCTION permit_parts(
    permit text, OUT tenant text, OUT kind smallint, OUT kind_name text, OUT name text,
    OUT fence bigint
) LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    said bytea;
    key text;
BEGIN
    said := decode(
        rpad(translate(permit, '-_', '+/'), (length(permit) + 3) / 4 * 4, '='), 'base64');
    -- The last 32 bytes are the program's own proof.
    IF octet_length(said) < 45 OR get_byte(said, 0) <> 1 THEN
        RAISE EXCEPTION 'not a permit' USING ERRCODE = 'OW002';
    END IF;
    fence := ('x' || encode(substr(said, 2, 8), 'hex'))::bit(64)::bigint;
    key := convert_from(substr(said, 10, octet_length(said) - 41), 'UTF8');
    tenant := split_part(key, ':', 1);
    kind_name := split_part(key, ':', 2);
    name := substr(key, length(tenant) + length(kind_name) + 3);
    kind := array_position(ARRAY['request', 'job', 'event', 'append'], kind_name) - 1;
    IF kind IS NULL OR tenant = '' OR name = '' THEN
        RAISE EXCEPTION 'not a permit' USING ERRCODE = 'OW002';
    END IF;
EXCEPTION
    WHEN data_exception THEN
        RAISE EXCEPTION 'not a permit' USING ERRCODE = 'OW002';
END
$$;

CREATE FUNCTION varint(number bigint) RETURNS bytea LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    left_over bigint := number;
    encoded bytea := ''::bytea;
BEGIN
    WHILE left_over >= 128 LOOP
        encoded := encoded || set_byte('\x00'::bytea, 0, ((left_over & 127) | 128)::integer);
        left_over := left_over >> 7;
    END LOOP;
    RETURN encoded || set_byte('\x00'::bytea, 0, left_over::integer);
END
$$;

-- A text as the program's codec writes it: its length and one, and its bytes; 0 for none.
CREATE FUNCTION coded_text(part text) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN part IS NULL THEN '\x00'::bytea ELSE
        varint(octet_length(convert_to(part, 'UTF8')) + 1) || convert_to(part, 'UTF8') END
$$;

-- A record's rest, taken apart: terms, six texts as they are encoded, and the guard.
CREATE FUNCTION rest_parts(
    rest bytea, OUT lease_ms bigint, OUT retain_ms bigint, OUT remember_ms bigint,
    OUT max_attempts bigint, OUT flags integer, OUT texts bytea[], OUT plain_texts text[],
    OUT guard bytea
) LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    at integer := 1;
    numbers bigint[] := '{}';
    number bigint;
    shift integer;
    one integer;
    start integer;
    part bytea;
BEGIN
    IF get_byte(rest, 0) <> 1 THEN
        RAISE EXCEPTION 'a record of another version' USING ERRCODE = 'OW003';
    END IF;
    texts := '{}';
    plain_texts := '{}';
    FOR n IN 1 .. 10 LOOP
        IF n = 5 THEN
            flags := get_byte(rest, at);
            at := at + 1;
        END IF;
        start := at;
        number := 0;
        shift := 0;
        LOOP
            one := get_byte(rest, at);
            at := at + 1;
            number := number | ((one & 127)::bigint << shift);
            shift := shift + 7;
            EXIT WHEN one < 128;
        END LOOP;
        IF n <= 4 THEN
            numbers := numbers || number;
        ELSE
            -- A text can't hold NUL; one that does is not shown.
            part := CASE WHEN number > 0 THEN substr(rest, at + 1, (number - 1)::integer) END;
            plain_texts := plain_texts || CASE WHEN position('\x00'::bytea IN part) = 0
                THEN convert_from(part, 'UTF8') END;
            at := at + greatest(number - 1, 0)::integer;
            texts := texts || substr(rest, start + 1, at - start);
        END IF;
    END LOOP;
    lease_ms := numbers[1];
    retain_ms := numbers[2];
    remember_ms := numbers[3];
    max_attempts := numbers[4];
    -- The last eight bytes are the seal.
    guard := substr(rest, at + 1, octet_length(rest) - 8 - at);
END
$$;

-- A digest as the program keeps it: the version of its rules and the hash of labelled bytes.
CREATE FUNCTION digest_of(body bytea) RETURNS bytea LANGUAGE sql IMMUTABLE
    AS 'SELECT ''\x01''::bytea
        || sha256(convert_to(''onceward.fingerprint'', ''UTF8'') || ''\x0102''::bytea || body)';

-- The truncated hash that stands for a key in the audit.
CREATE FUNCTION key_hash_of(tenant text, kind_name text, name text) RETURNS text
    LANGUAGE sql IMMUTABLE AS $$
    SELECT encode(substr(sha256(string_agg(
        int8send(octet_length(convert_to(one.part, 'UTF8'))) || convert_to(one.part, 'UTF8'),
        ''::bytea ORDER BY one.place
    )), 1, 8), 'hex')
    FROM unnest(ARRAY[tenant, kind_name, name]) WITH ORDINALITY AS one (part, place)
$$;

-- One byte.
CREATE FUNCTION byte_of(number integer) RETURNS bytea LANGUAGE sql IMMUTABLE
    AS 'SELECT set_byte(''\x00''::bytea, 0, number)';

-- What a record's seal starts from: the same as in the program's codec.
CREATE FUNCTION seal_base(
    tenant text, kind_name text, name text, state smallint, fingerprint bytea, attempt bigint,
    priority smallint, has_payload boolean, token bytea, outcome bytea, body bytea
) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT sha256(
        coded_text(tenant) || coded_text(kind_name) || coded_text(name) || byte_of(state)
        || fingerprint || int4send(attempt::integer) || byte_of(priority)
        || byte_of(has_payload::integer) || token
        || CASE WHEN outcome IS NULL THEN '\x00'::bytea ELSE '\x01'::bytea || outcome END || body
    )
$$;

-- Rings for who waits for a key in another process.
CREATE FUNCTION ring(of_lock bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- The mark is left to the next group that writes the key: to delete it here would make whoever
    -- marks the key anew wait for the end of this transaction, which is the application's.
    IF EXISTS (SELECT FROM wanted AS w WHERE w.lock = of_lock) THEN
        PERFORM pg_notify(current_schema(), of_lock::text);
    END IF;
END
$$;

-- Ends a permit: done with an outcome, or failed, or dead. A completion that comes twice is an error,
-- also with the same outcome: the caller's transaction holds its effect a second time. This closes
-- the race of a retry with the commit whose answer was lost.
CREATE FUNCTION end_permit(
    permit text, new_state smallint, outcome_bytes bytea, error text, retain bigint, due_in bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    p record;
    r records;
    was record;
    digest bytea := digest_of(outcome_bytes);
    to_state smallint := new_state;
    number bigint;
    now_at bigint;
    due bigint;
    expire bigint;
    sweep bigint;
    body bytea;
    by_token bytea := uuid_send(gen_random_uuid());
    lock bigint;
BEGIN
    IF new_state = 2 AND outcome_bytes IS NULL THEN
        RAISE EXCEPTION 'an answer must not be NULL'
            USING ERRCODE = 'null_value_not_allowed', HINT = 'Give an empty body instead.';
    END IF;
    p := permit_parts(permit);
    lock := lock_of(current_schema(), 'record', p.tenant, p.kind_name, p.name);
    PERFORM pg_advisory_xact_lock(lock);
    PERFORM set_config('onceward.tenant', p.tenant, true);
    SELECT * INTO r FROM records AS one
    WHERE one.tenant = p.tenant AND one.kind = p.kind AND one.name = p.name;
    IF r.fence IS DISTINCT FROM p.fence THEN
        IF new_state = 2 AND r.state = 2 AND r.last_fence = p.fence AND r.outcome = digest THEN
            RAISE EXCEPTION 'this permit was completed with this very outcome'
                USING ERRCODE = 'OW005', HINT = 'Roll back: the effect and its answer are there.';
        END IF;
        RAISE EXCEPTION 'permit.lost: the key was granted again, or is finished'
            USING ERRCODE = 'OW001', HINT = 'Roll back: another attempt has the key.';
    END IF;
    was := rest_parts(r.rest);
    IF was.guard <> '\x00'::bytea THEN
        RAISE EXCEPTION 'a permit under a guard is ended through the control API'
            USING ERRCODE = 'OW003';
    END IF;
    now_at := store_now_ms();
    number := nextval('stamps');
    IF to_state = 3 AND was.max_attempts > 0 AND r.attempt >= was.max_attempts THEN
        to_state := 4;
    END IF;
    retain := coalesce(retain, was.retain_ms);
    IF retain NOT BETWEEN 1 AND 315360000000 THEN
        RAISE EXCEPTION 'retain_ms is %, but must be between 1 and 315360000000', retain
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    CASE to_state
        WHEN 2 THEN
            expire := now_at + retain;
            sweep := expire;
        WHEN 3 THEN
            due := now_at + due_in;
            IF p.kind = 0 THEN
                sweep := due + was.retain_ms + was.remember_ms;
            END IF;
        ELSE
            NULL;
    END CASE;
    body := '\x01'::bytea || varint(was.lease_ms)
        || varint(CASE WHEN to_state = 2 THEN retain ELSE was.retain_ms END)
        || varint(was.remember_ms) || varint(was.max_attempts) || byte_of(was.flags)
        || was.texts[1] || was.texts[2] || coded_text(left(error, 512))
        || was.texts[4] || was.texts[5] || was.texts[6] || was.guard;
    digest := CASE WHEN to_state = 2 THEN digest ELSE r.outcome END;
    UPDATE records AS one SET
        state = to_state, rev = number, fence = NULL, token = by_token,
        updated_at = now_at, due_at = due, expires_at = expire, sweep_at = sweep,
        sweep_from = sweep, outcome = digest,
        outcome_id = CASE
            WHEN to_state <> 2 THEN r.outcome_id WHEN outcome_bytes <> ''::bytea THEN number
        END,
        rest = body || record_seal(
            seal_base(
                p.tenant, p.kind_name, p.name, to_state, r.fingerprint, r.attempt,
                r.priority, r.has_payload, by_token, digest, body
            ),
            number, NULL, r.last_fence, r.created_at, now_at, due, expire, sweep
        )
    WHERE one.tenant = p.tenant AND one.kind = p.kind AND one.name = p.name
        AND one.fence = p.fence;
    IF to_state = 2 THEN
        DELETE FROM outcomes AS o WHERE o.id = r.outcome_id;
        INSERT INTO outcomes (id, tenant, bytes)
        SELECT number, p.tenant, outcome_bytes WHERE outcome_bytes <> ''::bytea;
    END IF;
    INSERT INTO audit (
        tenant, at, action, subject, key_hash, payload_hash, fence, actor, request_id,
        correlation_id, detail
    ) VALUES (
        p.tenant, now_at,
        p.kind_name || CASE to_state WHEN 2 THEN '.done' WHEN 3 THEN '.failed' ELSE '.dead' END,
        plain(split_part(p.name, ':', 1)), key_hash_of(p.tenant, p.kind_name, p.name),
        encode(substr(r.fingerprint, 2), 'hex'), p.fence, was.plain_texts[4], was.plain_texts[5],
        was.plain_texts[6], left(error, 512)
    );
    PERFORM ring(lock);
    PERFORM set_config('onceward.tenant', '', true);
    RETURN true;
END
$$;

-- A response as the program stores it.
CREATE FUNCTION response_of(status integer, body bytea, headers jsonb) RETURNS bytea
    LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    stored bytea;
    header record;
    count integer := 0;
    coded bytea := ''::bytea;
BEGIN
    IF status IS NULL OR status NOT BETWEEN 200 AND 599 THEN
        RAISE EXCEPTION 'status is %, but must be between 200 and 599', status
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR header IN SELECT lower(h.key) AS key, h.value FROM jsonb_each_text(headers) AS h LOOP
        IF header.key !~ '^[a-z0-9!#$&''*+.^_`|~-]+$' OR header.value ~ '[\x01-\x08\x0a-\x1f\x7f]' THEN
            RAISE EXCEPTION 'a header can''t be sent: %', header.key
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        CONTINUE WHEN header.key = ANY (ARRAY[
            'set-cookie', 'set-cookie2', 'date', 'connection', 'keep-alive', 'proxy-authenticate',
            'proxy-authorization', 'proxy-connection', 'te', 'trailer', 'transfer-encoding',
            'upgrade', 'www-authenticate', 'content-length', 'retry-after', 'x-request-id'
        ]) OR header.key ~ 'rate-?limit|^onceward-|^(x-)?idempotency-|^x-duplicate-of$';
        count := count + 1;
        coded := coded || int4send(octet_length(header.key)) || convert_to(header.key, 'LATIN1')
            || int4send(octet_length(convert_to(header.value, 'LATIN1')))
            || convert_to(header.value, 'LATIN1');
    END LOOP;
    RETURN '\x0100'::bytea || int2send(status::smallint) || int4send(count) || coded || body;
END
$$;

-- The answer to a request, as JSON: what the gateway sends, now and to every retry.
CREATE FUNCTION complete(
    permit text, status integer, body jsonb, headers jsonb DEFAULT '{}',
    retain_ms bigint DEFAULT NULL
) RETURNS boolean LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
    SELECT end_permit(permit, 2::smallint, response_of(
        status, convert_to(body::text, 'UTF8'),
        '{"content-type": "application/json"}'::jsonb || headers
    ), NULL, retain_ms, NULL)
$$;

-- The same with a body of bytes; the headers say what they are.
CREATE FUNCTION complete(
    permit text, status integer, body bytea, headers jsonb DEFAULT '{}',
    retain_ms bigint DEFAULT NULL
) RETURNS boolean LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
    SELECT end_permit(
        permit, 2::smallint, response_of(status, body, headers), NULL, retain_ms, NULL
    )
$$;

-- The same with a body of text, as it is.
CREATE FUNCTION complete(
    permit text, status integer, body text, headers jsonb DEFAULT '{}',
    retain_ms bigint DEFAULT NULL
) RETURNS boolean LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
    SELECT end_permit(permit, 2::smallint, response_of(
        status, convert_to(body, 'UTF8'), '{"content-type": "application/json"}'::jsonb || headers
    ), NULL, retain_ms, NULL)
$$;

-- The outcome of a job, or of a claim over the control API.
CREATE FUNCTION complete(permit text, outcome jsonb) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
    SELECT end_permit(permit, 2::smallint, convert_to(outcome::text, 'UTF8'), NULL, NULL, NULL)
$$;

-- The attempt failed and had no effect; another may run after a while. Never: `retry_in_ms` NULL.
CREATE FUNCTION fail(permit text, error text, retry_in_ms bigint DEFAULT 0) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
    SELECT end_permit(
        permit, CASE WHEN retry_in_ms IS NULL THEN 4 ELSE 3 END::smallint, NULL, error, NULL,
        greatest(retry_in_ms, 0)
    )
$$;

-- A part of a key as the program keeps it.
CREATE FUNCTION escaped(part text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF part IS NULL OR part = '' OR octet_length(part) > 512 OR part ~ '[\x01-\x1f\x7f]' THEN
        RAISE EXCEPTION 'a part of a key must be 1 to 512 bytes without control characters: %', part
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN replace(replace(part, '%', '%25'), ':', '%3A');
END
$$;

-- Makes a job that follows what the transaction writes. Returns whether it is new: a job of the
-- same queue, type and resource is made once, for as long as it is kept: one whose retention has
-- ended is made anew. Without a resource, the same payload is the same job.
CREATE FUNCTION enqueue(
    tenant text, queue text, type text, payload jsonb, resource text DEFAULT NULL,
    run_in_ms bigint DEFAULT 0, priority integer DEFAULT 0
) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
DECLARE
    bytes bytea := convert_to(payload::text, 'UTF8');
    whose text := escaped(tenant);
    of_name text := escaped(queue) || ':' || escaped(type) || ':'
        || escaped(coalesce(resource, left(encode(sha256(bytes), 'hex'), 16)));
    lock bigint := lock_of(current_schema(), 'record', whose, 'job', of_name);
    fingerprint bytea := digest_of(bytes);
    by_token bytea := uuid_send(gen_random_uuid());
    body bytea := '\x01'::bytea || varint(30000) || varint(86400000) || varint(86400000)
        || varint(5) || '\x0000000000000000'::bytea;
    now_at bigint;
    number bigint;
    there record;
BEGIN
    -- As the program bounds a whole key.
    IF octet_length(whose) + octet_length(of_name) > 2560 THEN
        RAISE EXCEPTION 'the key is % bytes, escaped, but at most 2560 are allowed',
            octet_length(whose) + octet_length(of_name)
            USING ERRCODE = 'invalid_parameter_value',
                HINT = 'Tenant, queue, type and resource together are the key.';
    END IF;
    run_in_ms := coalesce(run_in_ms, 0);
    priority := coalesce(priority, 0);
    IF priority NOT BETWEEN 0 AND 9 OR run_in_ms NOT BETWEEN 0 AND 315360000000 THEN
        RAISE EXCEPTION 'priority must be 0 to 9, run_in_ms 0 to 315360000000'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM pg_advisory_xact_lock(lock);
    PERFORM set_config('onceward.tenant', whose, true);
    -- Read under the lock, as the records are: an old now would find a job kept that is not.
    now_at := store_now_ms();
    SELECT
        r.fingerprint, r.outcome_id, r.payload_id,
        r.state = 6 OR (r.state = 2 AND r.expires_at <= now_at) AS is_over
    INTO there FROM records AS r
    WHERE r.tenant = whose AND r.kind = 1 AND r.name = of_name;
    IF FOUND AND there.is_over IS TRUE THEN
        DELETE FROM records AS r
        WHERE r.tenant = whose AND r.kind = 1 AND r.name = of_name;
        DELETE FROM outcomes AS o WHERE o.id = there.outcome_id;
        DELETE FROM payloads AS o WHERE o.id = there.payload_id;
    ELSIF FOUND THEN
        IF there.fingerprint <> fingerprint THEN
            RAISE EXCEPTION 'a job of this queue, type and resource has another payload'
                USING ERRCODE = 'OW004';
        END IF;
        PERFORM set_config('onceward.tenant', '', true);
        RETURN false;
    END IF;
    number := nextval('stamps');
    INSERT INTO records (
        tenant, kind, name, state, fingerprint, rev, fence, last_fence, token, attempt, priority,
        created_at, updated_at, due_at, payload_id, has_payload, rest
    ) VALUES (
        whose, 1, of_name, 0, fingerprint, number, NULL, 0, by_token, 0, priority, now_at, now_at,
        now_at + run_in_ms, number, true,
        body || record_seal(
            seal_base(
                whose, 'job', of_name, 0::smallint, fingerprint, 0, priority::smallint, true,
                by_token, NULL, body
            ),
            number, NULL, 0, now_at, now_at, now_at + run_in_ms, NULL, NULL
        )
    );
    INSERT INTO payloads (id, tenant, bytes, seal) VALUES (
        number, whose, bytes,
        substr(sha256(
            int8send(octet_length(convert_to(whose, 'UTF8'))) || convert_to(whose, 'UTF8')
            || int8send(3) || convert_to('job', 'UTF8')
            || int8send(octet_length(convert_to(of_name, 'UTF8'))) || convert_to(of_name, 'UTF8')
            || int8send(octet_length(bytes)) || bytes
        ), 1, 8)
    );
    INSERT INTO audit (tenant, at, action, subject, key_hash, payload_hash) VALUES (
        whose, now_at, 'job.enqueued', queue, key_hash_of(whose, 'job', of_name),
        encode(substr(fingerprint, 2), 'hex')
    );
    PERFORM ring(lock);
    PERFORM set_config('onceward.tenant', '', true);
    RETURN true;
END
$$;

-- A group of the program in a transaction of its caller's, whose session has settings of its own; what
-- it does is said at apply_group. For members of onceward_engine.
CREATE FUNCTION apply_own(
    batches integer, locks bigint[], lock_batch integer[], token_batch integer[], tokens bytea[],
    purge_ms bigint, turns integer, slices slice_row[],
    OUT now_ms bigint, OUT verdicts smallint[], OUT again_rev bigint[], OUT again_fence bigint[],
    OUT failed bigint[], OUT stamp bigint, OUT there looked
) RETURNS SETOF record LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET row_security = on
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
    SELECT * FROM apply_group($1, $2, $3, $4, $5, $6, $7, $8)
$$;
