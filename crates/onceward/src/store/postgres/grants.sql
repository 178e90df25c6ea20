-- Who may do what. Runs after the migrations, and again each time: nothing here depends on what was
-- granted before. Names are unqualified: the search path is the schema.
DO $$
DECLARE
    place text := current_schema();
    name text;
BEGIN
    EXECUTE format('REVOKE ALL ON SCHEMA %I FROM PUBLIC', place);
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO onceward_engine, onceward_app, onceward_reader,'
        ' onceward_lister, onceward_views', place);
    -- Owners of functions and views need the right to create here only while they become owners.
    EXECUTE format('GRANT CREATE ON SCHEMA %I TO onceward_engine, onceward_lister, onceward_views',
        place);
    EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA %I FROM PUBLIC', place);
    EXECUTE format('GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA %I TO onceward_engine', place);
    FOR name IN
        SELECT p.oid::regprocedure::text FROM pg_proc AS p
        WHERE p.pronamespace = place::regnamespace AND p.proname LIKE '%\_places'
    LOOP
        EXECUTE format('ALTER FUNCTION %s OWNER TO onceward_lister', name);
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO onceward_engine', name);
    END LOOP;
    FOR name IN
        SELECT p.oid::regprocedure::text FROM pg_proc AS p
        WHERE p.pronamespace = place::regnamespace AND p.proname IN ('complete', 'fail', 'enqueue')
    LOOP
        EXECUTE format('ALTER FUNCTION %s OWNER TO onceward_engine', name);
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO onceward_app', name);
    END LOOP;
    FOR name IN
        SELECT p.oid::regprocedure::text FROM pg_proc AS p
        WHERE p.pronamespace = place::regnamespace AND p.proname = 'apply_own'
    LOOP
        EXECUTE format('ALTER FUNCTION %s OWNER TO onceward_engine', name);
    END LOOP;
    FOR name IN
        SELECT c.relname FROM pg_class AS c
        WHERE c.relnamespace = place::regnamespace AND c.relkind = 'v'
            AND c.relowner <> 'onceward_views'::regrole
    LOOP
        -- Whoever reads the view holds this back, and makes all who come later wait for it.
        EXECUTE format('ALTER VIEW %I OWNER TO onceward_views', name);
    END LOOP;
    FOR name IN
        SELECT c.relname FROM pg_class AS c
        WHERE c.relnamespace = place::regnamespace AND c.relkind = 'v'
    LOOP
        EXECUTE format('GRANT SELECT ON %I TO onceward_reader', name);
    END LOOP;
    -- Whoever reads a view calls the functions in it.
    FOR name IN
        SELECT p.oid::regprocedure::text FROM pg_proc AS p
        WHERE p.pronamespace = place::regnamespace AND p.proname IN (
            'plain', 'id_of', 'time_of', 'is_response', 'response_status', 'response_part',
            'kept_request', 'request_json', 'path_of'
        )
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO onceward_reader, onceward_views', name);
    END LOOP;
    EXECUTE format('REVOKE CREATE ON SCHEMA %I FROM onceward_engine, onceward_lister,'
        ' onceward_views', place);
END
$$;

GRANT SELECT, INSERT, UPDATE, DELETE
    ON records, records_request, records_job, records_event, records_append, outcomes, payloads,
        marks, tokens, wanted
    TO onceward_engine;
-- Entries are added and read; nobody who serves can change or remove one, but for `prune_audit`.
GRANT SELECT, INSERT ON audit TO onceward_engine;
GRANT SELECT ON migrations TO onceward_engine, onceward_reader;
GRANT USAGE ON SEQUENCE stamps TO onceward_engine;
GRANT SELECT (tenant, kind, name, state, sweep_at, sweep_from) ON records TO onceward_lister;
GRANT SELECT (ctid, tenant, kind, name, state, priority, due_at) ON records_job
    TO onceward_lister;
GRANT SELECT (tenant, name) ON marks TO onceward_lister;
GRANT SELECT (tenant, xact, id, at, subject, key_hash, action) ON audit TO onceward_lister;
GRANT SELECT ON records, outcomes, payloads, audit TO onceward_views;

-- Whoever migrates was a member of these roles to hand things over; as a member it would see what
-- they see, across tenants.
DO $$
DECLARE
    name text;
BEGIN
    FOR name IN
        SELECT role.rolname FROM pg_auth_members AS m
        JOIN pg_roles AS role ON role.oid = m.roleid
        JOIN pg_roles AS one ON one.oid = m.member
        WHERE one.rolname = current_user AND role.rolname IN ('onceward_lister', 'onceward_views')
    LOOP
        EXECUTE format('REVOKE %I FROM CURRENT_USER', name);
    END LOOP;
END
$$;
