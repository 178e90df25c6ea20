-- Functions that stand on others, bound to them when they are made instead of when they are called:
-- the views and the policies then work for who names them with their schema, whatever his search
-- path is. As bodies that the server has parsed they still become part of the statement's plan.

CREATE OR REPLACE FUNCTION current_tenant() RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
    RETURN CASE
        WHEN current_setting('onceward.tenant', true) <> ''
            THEN current_setting('onceward.tenant', true)
        ELSE no_tenant(current_setting('onceward.tenant', true))
    END;

CREATE OR REPLACE FUNCTION id_of(name text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN plain(substring(name FROM '[^:]*$'));

CREATE OR REPLACE FUNCTION response_status(stored bytea) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN is_response(stored) THEN get_byte(stored, 2) * 256 + get_byte(stored, 3) END;

-- What is no plain expression is told where to look. Only views call these.
ALTER FUNCTION response_part(bytea) SET search_path FROM CURRENT;
ALTER FUNCTION request_json(bytea) SET search_path FROM CURRENT;

-- The path of a request: its endpoint's with the values in the places of their names. They stand
-- between the caller, which is the second part of the name, and the key, which is the last.
CREATE FUNCTION path_of(name text) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path FROM CURRENT AS $$
DECLARE
    parts text[] := string_to_array(name, ':');
    pieces text[] := regexp_split_to_array(
        regexp_replace(plain(parts[1]), '^[A-Z]+ (?=/)', ''), '\{[^/{}]*\}');
    path text := pieces[1];
BEGIN
    FOR n IN 2 .. cardinality(pieces) LOOP
        -- Without a value for it, a claim of another kind has this scope: shown as it is.
        IF n + 1 >= cardinality(parts) THEN
            RETURN regexp_replace(plain(parts[1]), '^[A-Z]+ (?=/)', '');
        END IF;
        path := path || plain(parts[n + 1]) || pieces[n];
    END LOOP;
    RETURN path;
END
$$;

-- As it was, but for the path, which was the endpoint's.
CREATE OR REPLACE VIEW idempotency_keys AS
SELECT
    md5(r.tenant || ':' || r.name)::uuid AS id,
    plain(r.tenant) AS tenant_id,
    id_of(r.name) AS idempotency_key,
    plain(split_part(r.name, ':', 1)) AS route_pattern,
    -- Of the body alone where it is kept, as in derived keys and conflicts; else of the request.
    coalesce(
        left(encode(sha256(kept_request(p.bytes)), 'hex'), 16),
        encode(substr(r.fingerprint, 2), 'hex')
    ) AS content_hash,
    substring(plain(split_part(r.name, ':', 1)) FROM '^([A-Z]+) /') AS request_method,
    path_of(r.name) AS request_path,
    request_json(p.bytes) AS request_body,
    NULL::jsonb AS request_headers,
    response_status(o.bytes) AS response_status_code,
    (response_part(o.bytes)).body AS response_body,
    (response_part(o.bytes)).headers AS response_headers,
    time_of(r.created_at) AS created_at,
    time_of(coalesce(r.expires_at, r.sweep_at)) AS expires_at,
    CASE WHEN r.state IN (2, 6) THEN time_of(r.updated_at) END AS completed_at
FROM records AS r
LEFT JOIN outcomes AS o ON o.id = r.outcome_id AND o.tenant = r.tenant
LEFT JOIN payloads AS p ON p.id = r.payload_id AND p.tenant = r.tenant
-- Not the store's own: leases of those who seal, relay and consume.
WHERE r.kind = 0 AND NOT (r.tenant = 'onceward' AND starts_with(r.name, 'onceward.'));
