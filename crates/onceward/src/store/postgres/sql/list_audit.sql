-- A tenant's entries in the order of their transactions and, within one, of their numbers. Whoever
-- has committed before the first page was asked for is in it or in a later one; a transaction that
-- began early and commits meanwhile may be missed. Where nothing may be, only what is settled is
-- asked for: nothing can come before it any more.
SELECT
    id, at, tenant, action, subject, key_hash, payload_hash, version_before, version_after, fence,
    actor, request_id, correlation_id, detail, xact::text
FROM audit
WHERE tenant = $3
    AND (xact, id) > ($1::text::xid8, $2)
    AND ($4::text IS NULL OR subject = $4)
    AND ($5::text IS NULL OR key_hash = $5)
    AND ($6::text IS NULL OR action = $6)
    AND ($7::bigint IS NULL OR at >= $7)
    AND ($8::bigint IS NULL OR at < $8)
    AND (NOT $9::boolean OR xact < pg_snapshot_xmin(pg_current_snapshot()))
-- The column, not the text of the same name that is shown: 10 comes after 9.
ORDER BY audit.xact, id
LIMIT $10
