-- Read after the write lock was taken: stamps drawn from here are above all that were drawn before.
SELECT stamp, now, audit, indexed FROM meta WHERE id = 1
