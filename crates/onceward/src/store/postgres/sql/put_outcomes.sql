-- Written in the transaction of the record that bears the digest: closes the race of a reader that
-- sees a record as done before its outcome is there.
INSERT INTO outcomes (tenant, kind, name, bytes)
SELECT * FROM unnest($1::text[], $2::smallint[], $3::text[], $4::bytea[])
ON CONFLICT (tenant, kind, name) DO UPDATE SET bytes = EXCLUDED.bytes
