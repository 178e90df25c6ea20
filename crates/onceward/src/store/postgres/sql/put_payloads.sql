-- Written in the transaction of the job's record: closes the race of a worker that takes a job
-- before its payload is there.
INSERT INTO payloads (tenant, kind, name, bytes, seal)
SELECT * FROM unnest($1::text[], $2::smallint[], $3::text[], $4::bytea[], $5::bytea[])
ON CONFLICT (tenant, kind, name) DO UPDATE SET bytes = EXCLUDED.bytes, seal = EXCLUDED.seal
