-- A kept payload: version, kind, and for kind 2 the canonical JSON of the whole request body. For
-- kind 3 it stands behind a flag (a form, its fields by name), the length of the query in two bytes,
-- the lower one first, and the query.
CREATE OR REPLACE FUNCTION kept_request(kept bytea) RETURNS bytea
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS 'SELECT CASE
        WHEN octet_length(kept) < 3 OR get_byte(kept, 0) <> 1 THEN NULL
        WHEN get_byte(kept, 1) = 2 THEN substr(kept, 3)
        WHEN get_byte(kept, 1) = 3 AND octet_length(kept) > 5
            THEN substr(kept, 6 + get_byte(kept, 3) + 256 * get_byte(kept, 4))
        END';
