-- Where a record is that is not young.
SELECT id FROM names WHERE tenant = ?1 AND kind = ?2 AND name = ?3
