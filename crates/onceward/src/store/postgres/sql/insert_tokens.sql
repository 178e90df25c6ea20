-- Closes the race of a lost answer: the token is there exactly when the batch's writes are. No
-- conflict clause: a token that is already there must fail the group, not pass unseen.
INSERT INTO tokens (token, at) SELECT token, $2::bigint FROM unnest($1::bytea[]) AS new (token)
