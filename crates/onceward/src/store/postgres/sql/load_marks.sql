-- Marks with their values, in one statement: closes the race of a reader that takes the position
-- before and the value after someone's commit.
SELECT m.tenant, m.name, m.position, m.updated_at, m.value, m.digest, m.seal, wanted.place
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS wanted (tenant, name, place)
JOIN marks AS m ON m.tenant = wanted.tenant AND m.name = wanted.name
