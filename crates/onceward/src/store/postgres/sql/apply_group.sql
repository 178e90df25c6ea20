-- The group, whole: what it does, and the races that it closes, are said at the function. The
-- statement is a transaction of its own, so its end is the commit.
SELECT (there).*, now_ms, verdicts, again_rev, again_fence, failed, stamp
FROM apply_group($1, $2, $3, $4, $5, $6, $7, $8)
