-- Closes the race of look and write: runs after the locks, in a snapshot that is younger than them
-- (read committed takes one per statement), so what it sees can't change before our commit.
SELECT wanted.place, r.rev, r.fence, r.token
FROM unnest($1::text[], $2::smallint[], $3::text[])
    WITH ORDINALITY AS wanted (tenant, kind, name, place)
JOIN records AS r ON r.tenant = wanted.tenant AND r.kind = wanted.kind AND r.name = wanted.name
