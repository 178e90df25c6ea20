DELETE FROM names WHERE tenant = ?1 AND kind = ?2 AND name = ?3 AND id = ?4
