-- Closes the race of two transactions that draw audit numbers in one order and commit in the other:
-- a reader that pages by number would never see the lower one. Whoever writes entries of a tenant
-- waits here until the writer before has ended. Tenants come in order and nobody who holds one
-- waits for anything else, so there is no deadlock. The price: groups with entries of one tenant
-- commit one after the other.
SELECT pg_advisory_xact_lock(hashtextextended(name, 0))
FROM unnest($1::text[]) AS wanted (name)
