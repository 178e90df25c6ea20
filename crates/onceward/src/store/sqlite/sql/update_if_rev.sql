-- What was decided from facts: look and write in one. A record that changed since changes nothing
-- (a renewed lease is not stolen), and neither does a batch that comes again (token) nor one that
-- would orphan stored bytes; those take the long way.
UPDATE records SET
    state = ?4, rev = ?5, fence = ?6, last_fence = ?7, token = ?8, fingerprint = ?9,
    attempt = ?10, priority = ?11, created_at = ?12, updated_at = ?13, due_at = ?14,
    expires_at = ?15, sweep_at = ?16, outcome = ?17, has_payload = ?18, rest = ?19, queue = ?20,
    room = ?26, outcome_id = iif(?24, outcome_id, ?21), payload_id = iif(?25, payload_id, ?22)
WHERE id = ?1 AND rev = ?23 AND token <> ?8
    AND (?24 OR outcome_id IS NULL) AND (?25 OR payload_id IS NULL)
