UPDATE meta SET stamp = ?1, now = ?2, audit = ?3, indexed = ?4 WHERE id = 1
