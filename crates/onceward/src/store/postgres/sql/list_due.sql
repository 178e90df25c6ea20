-- Jobs that may be taken. Closes no race: two takers see the same job, and its rev lets one have
-- it.
SELECT * FROM due($1, $2, $3, $4, $5, $6, $7)
