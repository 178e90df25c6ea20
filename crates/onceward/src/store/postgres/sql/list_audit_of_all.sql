-- All tenants' entries, as list_audit.sql lists those of one.
WITH places AS MATERIALIZED (
    SELECT array_agg(tenant) AS tenants, array_agg(xact) AS xacts, array_agg(id) AS ids
    FROM audit_places($1::text::xid8, $2, $3, $4, $5, $6, $7, $8, $9)
)
SELECT
    id, at, tenant, action, subject, key_hash, payload_hash, version_before, version_after, fence,
    actor, request_id, correlation_id, detail, xact::text
FROM places CROSS JOIN LATERAL audit_at(places.tenants, places.xacts, places.ids) AS found
ORDER BY found.xact, id
