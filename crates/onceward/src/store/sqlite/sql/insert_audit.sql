-- Numbered by us and not by the table: numbers are not used again after old entries were dropped.
INSERT INTO audit (
    id, tenant, at, action, subject, key_hash, payload_hash, version_before, version_after,
    fence, actor, request_id, correlation_id, detail
) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
