-- Where the record that a cursor names stands now: closes the race of a page with writes since the
-- page before. A record that has left the list no longer tells where to go on.
SELECT state, priority, due_at, sweep_at
FROM records WHERE tenant = $1 AND kind = $2 AND name = $3
