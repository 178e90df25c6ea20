-- An answer that an application records is judged as one that the gateway gives: what asks for a
-- retry is not stored, nor is a refusal of another gateway, and the statuses that the route moves
-- travel in the permit. The functions are those of the sixth and the eleventh migration.

-- The bytes of a permit, from its text.
CREATE FUNCTION permit_bytes(permit text) RETURNS bytea LANGUAGE sql IMMUTABLE
    AS 'SELECT decode(
        rpad(translate(permit, ''-_'', ''+/''), (length(permit) + 3) / 4 * 4, ''=''), ''base64'')';

-- The statuses that a route moves, and the place where the key begins, counted from 0. The first
-- version of a permit has none; the second a count and the numbers, once for each side.
CREATE FUNCTION permit_moves(
    said bytea, OUT stored integer[], OUT released integer[], OUT key_at integer
) LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    moved integer[];
    count integer;
BEGIN
    stored := '{}';
    released := '{}';
    key_at := 9;
    IF get_byte(said, 0) = 1 THEN
        RETURN;
    END IF;
    FOR side IN 1 .. 2 LOOP
        count := get_byte(said, key_at);
        moved := ARRAY(
            SELECT get_byte(said, key_at + 2 * n - 1) * 256 + get_byte(said, key_at + 2 * n)
            FROM generate_series(1, count) AS n
        );
        IF side = 1 THEN
            stored := moved;
        ELSE
            released := moved;
        END IF;
        key_at := key_at + 1 + 2 * count;
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION permit_parts(
    permit text, OUT tenant text, OUT kind smallint, OUT kind_name text, OUT name text,
    OUT fence bigint
) LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    said bytea;
    key text;
    key_at integer;
BEGIN
    said := permit_bytes(permit);
    -- The last 32 bytes are the program's own proof.
    IF octet_length(said) < 45 OR get_byte(said, 0) NOT IN (1, 2) THEN
        RAISE EXCEPTION 'not a permit' USING ERRCODE = 'OW002';
    END IF;
    fence := ('x' || encode(substr(said, 2, 8), 'hex'))::bit(64)::bigint;
    key_at := (permit_moves(said)).key_at;
    key := convert_from(substr(said, key_at + 1, octet_length(said) - 32 - key_at), 'UTF8');
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

-- Whether a problem is one that a gateway refuses a request with before anybody has judged it.
CREATE FUNCTION is_refusal(type text, code text) RETURNS boolean LANGUAGE sql IMMUTABLE
    AS $$ SELECT coalesce(right(type, length(code) + 1) IN (':' || code, '/' || code), false)
        AND code = ANY (ARRAY[
            'auth.forbidden', 'auth.required', 'body.not_canonical', 'body.too_large',
            'circuit.open', 'idempotency.in_flight', 'idempotency.key_invalid',
            'idempotency.key_required', 'idempotency.outcome_unknown',
            'idempotency.payload_mismatch', 'idempotency.response_not_stored',
            'idempotency.unprotected', 'overload.shed', 'planning.concurrency_etag_invalid',
            'planning.concurrency_etag_required', 'precondition.invalid', 'precondition.required',
            'rate.limited', 'request.malformed', 'route.unmatched', 'store.corrupt',
            'store.unavailable', 'upstream.failed', 'upstream.loop', 'upstream.timeout'
        ])
    $$;

-- Whether an answer is one that is stored; the same as the program's outcome policy.
CREATE FUNCTION is_stored(permit text, status integer, headers jsonb, body bytea) RETURNS boolean
    LANGUAGE plpgsql STABLE AS $$
DECLARE
    moved record;
    problem jsonb;
    asks_again boolean := headers ? 'retry-after';
    refusal boolean := false;
BEGIN
    -- What is no permit is told as such.
    PERFORM permit_parts(permit);
    IF status < 400 THEN
        RETURN true;
    END IF;
    moved := permit_moves(permit_bytes(permit));
    IF status = ANY (moved.released) THEN
        RETURN false;
    END IF;
    IF status < 500 AND lower(btrim(
        split_part(headers ->> 'content-type', ';', 1), E' \t'
    )) = 'application/problem+json' THEN
        BEGIN
            IF octet_length(body) <= 65536 THEN
                problem := convert_from(body, 'UTF8')::jsonb;
            END IF;
        EXCEPTION
            -- JSON that this server can't hold may ask for a retry.
            WHEN untranslatable_character OR numeric_value_out_of_range THEN asks_again := true;
            -- What is no JSON says nothing.
            WHEN data_exception OR statement_too_complex THEN problem := NULL;
        END;
        -- Nor can it read what is encoded.
        asks_again := asks_again OR lower(btrim(
            coalesce(headers ->> 'content-encoding', 'identity'), E' \t'
        )) <> 'identity';
        asks_again := asks_again OR coalesce(problem -> 'retryable' = 'true'::jsonb, false);
        refusal := coalesce(is_refusal(problem ->> 'type', problem ->> 'code'), false);
    END IF;
    IF status = ANY (moved.stored) AND NOT refusal THEN
        RETURN true;
    END IF;
    RETURN NOT (
        refusal OR status >= 500 OR status IN (401, 403, 408, 425, 429)
        OR (status IN (409, 423) AND asks_again)
    );
END
$$;

-- How long an answer is kept, as it was; what is not stored raises, so that nothing is recorded.
CREATE FUNCTION kept_for(
    permit text, status integer, given bigint, headers jsonb, body bytea
) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    p record;
    of_terms bigint;
BEGIN
    IF NOT is_stored(permit, status, headers, body) THEN
        RAISE EXCEPTION 'an answer with status % is never recorded: a retry has to run', status
            USING ERRCODE = 'invalid_parameter_value',
                HINT = 'Roll back and answer it; or call onceward.fail(permit, error).';
    END IF;
    IF given IS NOT NULL OR status < 400 THEN
        RETURN given;
    END IF;
    p := permit_parts(permit);
    PERFORM set_config('onceward.tenant', p.tenant, true);
    -- Terms stay what they are while a permit holds; whether it does is judged at its end.
    SELECT (rest_parts(r.rest)).retain_ms INTO of_terms FROM records AS r
    WHERE r.tenant = p.tenant AND r.kind = p.kind AND r.name = p.name;
    RETURN least(of_terms, 14400000);
END
$$;

-- Records an answer of bytes with its headers, as they are to be sent.
CREATE FUNCTION record_answer(
    permit text, status integer, body bytea, headers jsonb, retain_ms bigint
) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT end_permit(
        permit, 2::smallint, recorded(response_of(status, body, headers)), NULL,
        kept_for(permit, status, retain_ms, headers, body), NULL
    )
$$;

CREATE OR REPLACE FUNCTION complete(
    permit text, status integer, body jsonb, headers jsonb DEFAULT '{}',
    retain_ms bigint DEFAULT NULL
) RETURNS boolean LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
    SELECT record_answer(
        permit, status, convert_to(body::text, 'UTF8'),
        headers_over('{"content-type": "application/json"}', headers), retain_ms
    )
$$;

CREATE OR REPLACE FUNCTION complete(
    permit text, status integer, body bytea, headers jsonb DEFAULT '{}',
    retain_ms bigint DEFAULT NULL
) RETURNS boolean LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
    SELECT record_answer(permit, status, body, headers_over('{}', headers), retain_ms)
$$;

CREATE OR REPLACE FUNCTION complete(
    permit text, status integer, body text, headers jsonb DEFAULT '{}',
    retain_ms bigint DEFAULT NULL
) RETURNS boolean LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
    SELECT record_answer(
        permit, status, convert_to(body, 'UTF8'),
        headers_over('{"content-type": "application/json"}', headers), retain_ms
    )
$$;

DROP FUNCTION kept_for(text, integer, bigint);
