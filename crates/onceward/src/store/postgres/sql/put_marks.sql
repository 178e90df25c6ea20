-- Marks whose value is set or cleared. The locks of lock.sql close the race of two writers; the
-- maximum keeps a mark from moving back even if someone's SQL went around them.
INSERT INTO marks AS m (tenant, name, position, seal, value, digest, updated_at)
SELECT new.*, $7::bigint
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bytea[], $5::bytea[], $6::bytea[]) AS new
ON CONFLICT (tenant, name) DO UPDATE SET
    position = GREATEST(m.position, EXCLUDED.position),
    seal = EXCLUDED.seal,
    value = EXCLUDED.value,
    digest = EXCLUDED.digest,
    updated_at = EXCLUDED.updated_at
