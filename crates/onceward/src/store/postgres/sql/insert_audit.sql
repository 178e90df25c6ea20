-- Numbers are drawn here, under the lock of take_locks, which closes the race of numbers and
-- commits; within the group they rise in the order of the writes.
INSERT INTO audit (
    tenant, action, subject, key_hash, payload_hash, version_before, version_after, fence,
    actor, request_id, correlation_id, detail, at
)
SELECT
    tenant, action, subject, key_hash, payload_hash, version_before, version_after, fence,
    actor, request_id, correlation_id, detail, $13::bigint
FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[],
    $8::bigint[], $9::text[], $10::text[], $11::text[], $12::text[]
) WITH ORDINALITY AS new (
    tenant, action, subject, key_hash, payload_hash, version_before, version_after, fence,
    actor, request_id, correlation_id, detail, place
)
ORDER BY place
