-- Runs under the locks of lock.sql and after find_records.sql saw the row: closes the race of a sweep that
-- deletes what was renewed since it listed it.
DELETE FROM records AS gone
USING unnest($1::text[], $2::smallint[], $3::text[]) AS wanted (tenant, kind, name)
WHERE gone.tenant = wanted.tenant AND gone.kind = wanted.kind AND gone.name = wanted.name
