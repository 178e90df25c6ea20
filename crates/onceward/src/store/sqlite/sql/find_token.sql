SELECT 1 FROM tokens WHERE token = ?1
