DELETE FROM payloads WHERE id = ?1
