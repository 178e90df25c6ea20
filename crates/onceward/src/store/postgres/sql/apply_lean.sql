-- A group in which all is well, whole or not at all: what it does is said at the function. The
-- statement is a transaction of its own, so its end is the commit.
SELECT now_ms, stamp FROM apply_lean($1, $2, $3, $4)
