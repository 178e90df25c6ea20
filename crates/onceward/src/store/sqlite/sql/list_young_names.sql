SELECT id, tenant, kind, name FROM records WHERE id > ?1 ORDER BY id
