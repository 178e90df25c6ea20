-- Closes the race of two transactions that both find a key absent: rows can't be locked before
-- they exist, names can. Names come in order, so that of two groups one gets the first and both
-- don't hold half. Tried, never waited for: an open transaction on one key delays nobody else.
-- Released when the transaction has ended and its rows are visible to everyone.
SELECT pg_try_advisory_xact_lock(hashtextextended(name, 0))
FROM unnest($1::text[]) AS wanted (name)
