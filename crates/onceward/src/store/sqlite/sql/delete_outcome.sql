DELETE FROM outcomes WHERE id = ?1
