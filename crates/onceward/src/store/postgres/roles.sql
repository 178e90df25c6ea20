-- The roles, made once for the whole server; nobody can log in as any of them. Runs before the
-- migrations, and again each time: what is there stays as it is.
--
-- onceward_engine  what `onceward serve` works as. Not the owner, bound by row-level security.
-- onceward_app     may call complete, fail and enqueue in its own transactions, and nothing else.
-- onceward_reader  may read the views: for dashboards.
-- onceward_lister  owns the functions that look for places across tenants.
-- onceward_views   owns the views.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY[
        'onceward_engine', 'onceward_app', 'onceward_reader', 'onceward_lister', 'onceward_views'
    ] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
            BEGIN
                EXECUTE format(
                    'CREATE ROLE %I NOLOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE', name);
            EXCEPTION
                -- Another database of this server was migrated at the same moment.
                WHEN duplicate_object OR unique_violation THEN NULL;
            END;
        END IF;
        -- To hand things over to a role, one has to be a member of it.
        IF name IN ('onceward_engine', 'onceward_lister', 'onceward_views')
            AND NOT pg_has_role(current_user, name, CASE
                -- From 16 on, who makes a role is a member that may not become it.
                WHEN current_setting('server_version_num')::integer >= 160000 THEN 'SET'
                ELSE 'MEMBER'
            END) THEN
            EXECUTE format('GRANT %I TO CURRENT_USER', name);
        END IF;
    END LOOP;
END
$$;
