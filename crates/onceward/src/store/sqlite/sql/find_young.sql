-- Where a young record is, for those who have no memory of it: looks through all of them.
SELECT id FROM records WHERE id > ?4 AND tenant = ?1 AND kind = ?2 AND name = ?3
ORDER BY id DESC LIMIT 1
