-- Marks of all tenants, for an operator, as 0004 lists records: places across tenants first, which
-- onceward_lister finds by the columns that say where a mark is, then the marks themselves, each
-- read under its tenant.

CREATE POLICY places ON marks FOR SELECT TO onceward_lister USING (true);

-- Where all tenants' marks are whose names start with a text, in the order of tenant and name.
CREATE FUNCTION mark_places(after_tenant text, after_name text, of_prefix text, most bigint)
RETURNS TABLE (tenant text, name text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
    SELECT m.tenant, m.name
    FROM marks AS m
    WHERE (m.tenant, m.name) > (after_tenant, after_name) AND starts_with(m.name, of_prefix)
    ORDER BY m.tenant, m.name
    LIMIT most
$$;

-- The marks at these places, each read under its tenant, in the order of the places.
CREATE FUNCTION marks_at(tenants text[], names text[])
RETURNS SETOF looked LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT AS $$
DECLARE
    slice record;
BEGIN
    FOR slice IN
        SELECT one.tenant, array_agg(one.name) AS names, array_agg(one.place) AS places
        FROM unnest(tenants, names) WITH ORDINALITY AS one (tenant, name, place)
        GROUP BY one.tenant
    LOOP
        PERFORM set_config('onceward.tenant', slice.tenant, true);
        RETURN QUERY SELECT * FROM look_marks(slice.tenant, slice.names, slice.places);
    END LOOP;
    PERFORM set_config('onceward.tenant', '', true);
END
$$;
