SELECT seal, body FROM payloads WHERE id = ?1 AND length(body) <= ?2
