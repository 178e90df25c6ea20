-- The tables that people know, as views with their column names, for dashboards and for queries
-- that were written for such tables. Rows of all tenants: only onceward_reader may read them.
--
-- A response is shown only where it is one: outcomes of claims over the control API are not. Its body
-- is bytes, as they were sent. A request's body is its canonical form, where it was kept in full.

-- What escaping made of a part of a key, undone. NUL, which a text can't hold, becomes U+FFFD.
CREATE FUNCTION plain(part text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN position('%' IN part) = 0 THEN part ELSE (
        SELECT string_agg(
            CASE
                WHEN found.piece[1] = '%00' THEN chr(65533)
                WHEN left(found.piece[1], 1) = '%'
                    THEN chr(('x' || substr(found.piece[1], 2))::bit(8)::integer)
                ELSE found.piece[1]
            END, '' ORDER BY found.place
        )
        FROM regexp_matches(part, '%[0-9A-F]{2}|[^%]+', 'g') WITH ORDINALITY
            AS found (piece, place)
    ) END
$$;

-- The last part of a name: the id.
CREATE FUNCTION id_of(name text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS 'SELECT plain(substring(name FROM ''[^:]*$''))';

CREATE FUNCTION time_of(ms bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS 'SELECT to_timestamp(least(ms, 253402300799000) / 1000.0)';

-- A stored response: version, kind, status (2 bytes), number of headers (4 bytes), names and values
-- with their lengths (4 bytes), body. None of these when the bytes are something else.
CREATE FUNCTION is_response(stored bytea) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS 'SELECT octet_length(stored) >= 8 AND get_byte(stored, 0) = 1 AND get_byte(stored, 1) <= 1';

CREATE FUNCTION response_status(stored bytea) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS 'SELECT CASE WHEN is_response(stored)
        THEN get_byte(stored, 2) * 256 + get_byte(stored, 3) END';

CREATE FUNCTION response_part(
    stored bytea, OUT headers jsonb, OUT body bytea
) LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    at integer := 9;
    length integer;
    key text;
BEGIN
    IF is_response(stored) IS NOT TRUE THEN
        RETURN;
    END IF;
    headers := '{}';
    FOR n IN 1 .. ('x' || encode(substr(stored, 5, 4), 'hex'))::bit(32)::integer LOOP
        length := ('x' || encode(substr(stored, at, 4), 'hex'))::bit(32)::integer;
        key := convert_from(substr(stored, at + 4, length), 'LATIN1');
        at := at + 4 + length;
        length := ('x' || encode(substr(stored, at, 4), 'hex'))::bit(32)::integer;
        headers := headers || jsonb_build_object(
            key, convert_from(substr(stored, at + 4, length), 'LATIN1'));
        at := at + 4 + length;
    END LOOP;
    IF get_byte(stored, 1) = 0 THEN
        body := substr(stored, at);
    END IF;
EXCEPTION
    -- Cut or changed: the program refuses it when it is replayed; a dashboard goes on.
    WHEN others THEN
        headers := NULL;
        body := NULL;
END
$$;

-- A kept payload: version, kind, and for kind 2 the canonical JSON of the whole request body.
CREATE FUNCTION kept_request(kept bytea) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS 'SELECT CASE WHEN octet_length(kept) > 2 AND get_byte(kept, 0) = 1 AND get_byte(kept, 1) = 2
        THEN substr(kept, 3) END';

CREATE FUNCTION request_json(kept bytea) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    RETURN convert_from(kept_request(kept), 'UTF8')::jsonb;
EXCEPTION
    -- A text with U+0000 is JSON and no jsonb; a dashboard goes on.
    WHEN others THEN
        RETURN NULL;
END
$$;

CREATE VIEW idempotency_keys AS
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
    regexp_replace(plain(split_part(r.name, ':', 1)), '^[A-Z]+ (?=/)', '') AS request_path,
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

CREATE VIEW idempotency_records AS
SELECT
    plain(r.tenant) AS org_id,
    plain(split_part(r.name, ':', 1)) AS endpoint,
    id_of(r.name) AS idempotency_key,
    encode(substr(r.fingerprint, 2), 'hex') AS canonical_body_hash,
    encode(r.fingerprint, 'hex') AS request_fingerprint,
    response_status(o.bytes) AS response_status,
    (response_part(o.bytes)).body AS response_body,
    (response_part(o.bytes)).headers AS response_headers,
    time_of(r.created_at) AS created_at,
    time_of(r.expires_at) AS expires_at
FROM records AS r
LEFT JOIN outcomes AS o ON o.id = r.outcome_id AND o.tenant = r.tenant
-- Not the store's own: leases of those who seal, relay and consume.
WHERE r.kind = 0 AND NOT (r.tenant = 'onceward' AND starts_with(r.name, 'onceward.'));

CREATE VIEW processed_events AS
SELECT
    plain(r.tenant) AS tenant_id,
    plain(split_part(r.name, ':', 1)) AS handler,
    id_of(r.name) AS event_id,
    CASE r.state
        WHEN 0 THEN 'pending' WHEN 1 THEN 'processing' WHEN 2 THEN 'done' WHEN 3 THEN 'failed'
        WHEN 4 THEN 'dead' WHEN 5 THEN 'unknown' ELSE 'expired'
    END AS status,
    r.attempt AS attempt_count,
    r.last_fence AS fence,
    time_of(r.created_at) AS started_at,
    CASE WHEN r.state = 1 THEN time_of(r.updated_at) END AS heartbeat_at,
    CASE WHEN r.state = 1 THEN time_of(r.due_at) END AS lease_expires_at,
    CASE WHEN r.state IN (2, 6) THEN time_of(r.updated_at) END AS processed_at
FROM records AS r
WHERE r.kind = 2;

CREATE VIEW audit_log AS
SELECT
    a.id,
    plain(a.tenant) AS business_id,
    a.action,
    a.subject AS table_name,
    a.key_hash,
    a.payload_hash,
    jsonb_strip_nulls(jsonb_build_object(
        'version_before', a.version_before, 'version_after', a.version_after, 'fence', a.fence,
        'detail', a.detail
    )) AS after_data,
    a.actor AS user_id,
    a.request_id,
    a.correlation_id,
    time_of(a.at) AS created_at
FROM audit AS a;
