-- One tenant's entries by time, which is the order of their numbers. ?9 is the instant of entry ?2.
SELECT id, tenant, at, action, subject, key_hash, payload_hash, version_before, version_after,
    fence, actor, request_id, correlation_id, detail
FROM audit
WHERE tenant = ?1 AND at >= max(?3, ?9) AND at < ?4 AND id > ?2
    AND (?5 IS NULL OR subject = ?5) AND (?6 IS NULL OR key_hash = ?6)
    AND (?7 IS NULL OR action = ?7)
ORDER BY at, id LIMIT ?8
