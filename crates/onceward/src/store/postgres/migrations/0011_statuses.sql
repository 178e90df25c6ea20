-- An answer that an application records is judged as one that the gateway records: what tells of a
-- passing state is never stored, an error is kept for four hours at most, what is too large for a
-- batch of the program's is too large here, and each header has one value. The functions are those
-- of the sixth migration.

-- How long an answer with this status is kept: as given; otherwise as the record's terms say, NULL,
-- or at most four hours for an error. What is never stored raises, so that nothing is recorded.
CREATE FUNCTION kept_for(permit text, status integer, given bigint) RETURNS bigint
    LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    p record;
    of_terms bigint;
BEGIN
    IF status >= 500 OR status IN (401, 403, 408, 425, 429) THEN
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

-- What is stored, if it fits into a batch of the program's. What was answered must survive, also
-- where the application's own transactions need not.
CREATE FUNCTION recorded(outcome bytea) RETURNS bytea LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF octet_length(outcome) > 2000000 THEN
        RAISE EXCEPTION 'an answer is % bytes, but at most 2000000 are recorded',
            octet_length(outcome)
            USING ERRCODE = 'program_limit_exceeded',
                HINT = 'Record a smaller answer, or where the whole of it is found.';
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    RETURN outcome;
END
$$;

-- Headers by their names in lower case, over those that go without saying.
CREATE FUNCTION headers_over(usual jsonb, given jsonb) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    header record;
    lowered jsonb := '{}';
BEGIN
    FOR header IN SELECT lower(h.key) AS key, h.value FROM jsonb_each(given) AS h LOOP
        IF lowered ? header.key OR jsonb_typeof(header.value) IN ('null', 'array', 'object') THEN
            RAISE EXCEPTION 'a header must have one value, a text or a number: %', header.key
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        lowered := lowered || jsonb_build_object(header.key, header.value);
    END LOOP;
    RETURN usual || lowered;
END
$$;

CREATE OR REPLACE FUNCTION complete(
    permit text, status integer, body jsonb, headers jsonb DEFAULT '{}',
    retain_ms bigint DEFAULT NULL
) RETURNS boolean LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
    SELECT end_permit(permit, 2::smallint, recorded(response_of(
        status, convert_to(body::text, 'UTF8'),
        headers_over('{"content-type": "application/json"}', headers)
    )), NULL, kept_for(permit, status, retain_ms), NULL)
$$;

CREATE OR REPLACE FUNCTION complete(
    permit text, status integer, body bytea, headers jsonb DEFAULT '{}',
    retain_ms bigint DEFAULT NULL
) RETURNS boolean LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
    SELECT end_permit(
        permit, 2::smallint, recorded(response_of(status, body, headers_over('{}', headers))),
        NULL, kept_for(permit, status, retain_ms), NULL
    )
$$;

CREATE OR REPLACE FUNCTION complete(
    permit text, status integer, body text, headers jsonb DEFAULT '{}',
    retain_ms bigint DEFAULT NULL
) RETURNS boolean LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
    SELECT end_permit(permit, 2::smallint, recorded(response_of(
        status, convert_to(body, 'UTF8'),
        headers_over('{"content-type": "application/json"}', headers)
    )), NULL, kept_for(permit, status, retain_ms), NULL)
$$;

CREATE OR REPLACE FUNCTION complete(permit text, outcome jsonb) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
    SELECT end_permit(
        permit, 2::smallint, recorded(convert_to(outcome::text, 'UTF8')), NULL, NULL, NULL
    )
$$;
