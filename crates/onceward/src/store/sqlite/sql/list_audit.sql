-- Every tenant's entries, in the order of their numbers.
SELECT id, tenant, at, action, subject, key_hash, payload_hash, version_before, version_after,
    fence, actor, request_id, correlation_id, detail
FROM audit
WHERE id > ?2 AND at >= ?3 AND at < ?4
    AND (?5 IS NULL OR subject = ?5) AND (?6 IS NULL OR key_hash = ?6)
    AND (?7 IS NULL OR action = ?7)
ORDER BY id LIMIT ?8
