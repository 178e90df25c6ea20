DELETE FROM records WHERE id = ?1
