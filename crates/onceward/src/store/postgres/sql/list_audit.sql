-- Audit entries in the order of their numbers. What a reader has passed stays complete for each
-- tenant, because numbers are drawn under the lock of take_locks. Across tenants an entry with
-- a lower number may still come: page by tenant where nothing may be missed.
SELECT
    id, at, tenant, action, subject, key_hash, payload_hash, version_before, version_after, fence,
    actor, request_id, correlation_id, detail
FROM audit
WHERE id > $1
    AND ($2::text IS NULL OR tenant = $2)
    AND ($3::text IS NULL OR subject = $3)
    AND ($4::text IS NULL OR key_hash = $4)
    AND ($5::text IS NULL OR action = $5)
    AND ($6::bigint IS NULL OR at >= $6)
    AND ($7::bigint IS NULL OR at < $7)
ORDER BY id
LIMIT $8
