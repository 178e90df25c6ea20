-- In the transaction that clears the payload or deletes the record: closes the race of a key that
-- comes back and finds the payload of its former life.
DELETE FROM payloads AS gone
USING unnest($1::text[], $2::smallint[], $3::text[]) AS wanted (tenant, kind, name)
WHERE gone.tenant = wanted.tenant AND gone.kind = wanted.kind AND gone.name = wanted.name
