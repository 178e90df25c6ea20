SELECT at FROM tokens WHERE id = ?1
