INSERT INTO tokens (token, at) VALUES (?1, ?2)
