-- Closes the race of look and write for marks, as find_records.sql does for records: after the
-- locks. The value's digest is for the seal of a mark that keeps its value.
SELECT wanted.place, m.position, m.digest
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS wanted (tenant, name, place)
JOIN marks AS m ON m.tenant = wanted.tenant AND m.name = wanted.name
