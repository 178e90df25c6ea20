-- What conditions are checked against, before the first write of a batch.
SELECT id, rev, fence, token, outcome_id, payload_id
FROM records WHERE id = ?1
