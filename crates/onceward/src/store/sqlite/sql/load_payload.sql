SELECT seal, body FROM payloads WHERE id = ?1
