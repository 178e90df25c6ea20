-- Read after the write lock was taken: stamps drawn from here are above all that were drawn before.
SELECT stamp, now, audit, indexed, names_count, names_sum, marks_count, marks_sum,
    boot, boot_ms, sum_key, seal
FROM meta WHERE id = 1
