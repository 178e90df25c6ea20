-- Read once, when a database is opened, in the transaction in which its stamps leap.
SELECT stamp, since, seal FROM leases_anew WHERE id = 1
