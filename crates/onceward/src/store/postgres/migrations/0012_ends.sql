-- What the views tell of ends. A time that is not there is none: `least` passes over NULL, so that
-- whatever had no end ended in the year 9999.
CREATE OR REPLACE FUNCTION time_of(ms bigint) RETURNS timestamptz
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN ms IS NOT NULL THEN to_timestamp(least(ms, 253402300799000) / 1000.0) END;

-- As they were, but for the end: a record whose outcome was swept says when that was, and no more
-- when it was made. An average over such rows told how often the sweep runs.
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
    CASE WHEN r.state = 2 THEN time_of(r.updated_at) END AS completed_at
FROM records AS r
LEFT JOIN outcomes AS o ON o.id = r.outcome_id AND o.tenant = r.tenant
LEFT JOIN payloads AS p ON p.id = r.payload_id AND p.tenant = r.tenant
-- Not the store's own: leases of those who seal, relay and consume.
WHERE r.kind = 0 AND NOT (r.tenant = 'onceward' AND starts_with(r.name, 'onceward.'));

CREATE OR REPLACE VIEW processed_events AS
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
    CASE WHEN r.state = 2 THEN time_of(r.updated_at) END AS processed_at
FROM records AS r
WHERE r.kind = 2;
