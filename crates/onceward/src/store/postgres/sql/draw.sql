-- Closes the race of a slow writer with an old clock or an old number: now and stamps are drawn by
-- a statement of its own, after the one that took the locks. Nobody else can have drawn for the
-- same key since. A number that is lost in a rollback or a crash leaves a gap and no harm.
SELECT store_now_ms(), ARRAY(SELECT nextval('stamps') FROM generate_series(1, $1::bigint))
