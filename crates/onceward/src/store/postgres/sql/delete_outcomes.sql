-- In the transaction that clears the digest or deletes the record: closes the race of a key that
-- comes back and finds the outcome of its former life.
DELETE FROM outcomes AS gone
USING unnest($1::text[], $2::smallint[], $3::text[]) AS wanted (tenant, kind, name)
WHERE gone.tenant = wanted.tenant AND gone.kind = wanted.kind AND gone.name = wanted.name
