-- Closes the race of a batch with its own resent copy, when no record bears its token. The token's
-- name was locked before, so a first copy that is still under way has made this one leave.
SELECT t.token FROM unnest($1::bytea[]) AS wanted (token) JOIN tokens AS t ON t.token = wanted.token
