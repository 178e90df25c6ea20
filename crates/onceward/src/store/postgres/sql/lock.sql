-- Closes the race of two transactions that both find a key absent: rows can't be locked before
-- they exist, names can. A statement of its own, so that every later one of the transaction sees
-- what the holders before us have committed. See take_locks in the first migration.
SELECT take_locks($1::text[], $2::integer[], $3::text[], $4::integer[], $5::integer)
