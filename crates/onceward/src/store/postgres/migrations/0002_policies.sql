-- Row-level security that is in force: for the owner too, and on every partition by its own name.
--
-- A tenant's rows are seen and written only while the setting onceward.tenant names that tenant.
-- Functions set it for as long as they run; nothing sets it for a session. The setting that was
-- never made is NULL, and the one that was made and has ended is '': both are refused, because a
-- statement that forgot its tenant is a bug, and must not pass for a tenant without rows.
--
-- Two roles see rows across tenants, for reading only, and nobody logs in as them: onceward_lister
-- sees the places of records and entries (see 0004), onceward_views owns the views (see 0005).

CREATE FUNCTION no_tenant(setting text) RETURNS text LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
    RAISE EXCEPTION 'no tenant is set: onceward.tenant is %',
        CASE WHEN setting IS NULL THEN 'not set' ELSE 'empty' END
        USING ERRCODE = 'insufficient_privilege',
            HINT = 'SELECT set_config(''onceward.tenant'', $1, true) in the same transaction.';
END
$$;

-- In plain SQL, so that it becomes part of the statement's plan and is no call of its own.
CREATE FUNCTION current_tenant() RETURNS text LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN current_setting('onceward.tenant', true) <> ''
            THEN current_setting('onceward.tenant', true)
        ELSE no_tenant(current_setting('onceward.tenant', true))
    END
$$;

-- The subquery is there so that the setting is read once per statement, not once per row.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY[
        'records', 'records_request', 'records_job', 'records_event', 'records_append',
        'outcomes', 'payloads', 'marks', 'audit'
    ] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format(
            'CREATE POLICY tenant ON %I USING (tenant = (SELECT current_tenant()))'
            ' WITH CHECK (tenant = (SELECT current_tenant()))', name);
        EXECUTE format('CREATE POLICY views ON %I FOR SELECT TO onceward_views USING (true)', name);
    END LOOP;
    FOREACH name IN ARRAY ARRAY['records', 'records_job', 'audit'] LOOP
        EXECUTE format(
            'CREATE POLICY places ON %I FOR SELECT TO onceward_lister USING (true)', name);
    END LOOP;
END
$$;
