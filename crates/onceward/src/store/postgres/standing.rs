//! As whom a session works, and what it may rely on: role, row-level security, durability.
//!
//! Rule: a session works as `onceward_engine`, whoever has logged in, so that row-level security
//! binds its statements even when the login is the owner or a superuser. What is weaker than it
//! should be is refused when the session is opened, unless it was allowed by name; then it shows.

use tokio_postgres::{Client, Error};

use super::super::{Durability, StoreError};
use super::Weakness;
use super::migrate;
use super::open::Target;

/// Tables that hold a tenant's rows.
const OF_TENANTS: [&str; 9] = [
    "records",
    "records_request",
    "records_job",
    "records_event",
    "records_append",
    "outcomes",
    "payloads",
    "marks",
    "audit",
];

/// The login, and whether it may work as the engine.
const LOGIN: &str = "SELECT login.rolname::text, login.rolsuper, login.rolbypassrls,
        EXISTS (
            SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
            WHERE n.nspname = $1 AND pg_has_role(session_user, c.relowner, 'MEMBER')
                AND c.relname = 'records'
        ),
        (SELECT pg_has_role(session_user, oid, 'MEMBER') FROM pg_roles
            WHERE rolname = 'onceward_engine')
    FROM pg_roles AS login WHERE login.rolname = session_user";

/// What the server does with what it has answered, and which tables bind us.
const SERVER: &str = "SELECT current_setting('fsync'), current_setting('synchronous_commit'),
        pg_is_in_recovery(),
        ARRAY(
            SELECT c.relname::text FROM pg_class AS c
            WHERE c.relnamespace = current_schema()::regnamespace AND c.relname = ANY ($1)
                AND NOT row_security_active(c.oid)
            ORDER BY c.relname
        )";

/// A session's own setting outlives a change of the server's.
const PINNED: &str =
    "SELECT set_config('synchronous_commit', current_setting('synchronous_commit'), false)";

/// What a session may rely on.
#[derive(Debug, Clone)]
pub(super) struct Standing {
    pub(super) durability: Durability,
    /// What was allowed by name, and what is as well to know.
    pub(super) warnings: Vec<String>,
}

/// Takes the engine's role and looks at what it is worth.
pub(super) async fn take(client: &Client, target: &Target) -> Result<Standing, StoreError> {
    let failed = |error: Error| target.unreachable(&error);
    let mut warnings = Vec::new();
    let login = client.query_one(LOGIN, &[&target.options.schema]).await.map_err(failed)?;
    let read = (login.try_get(0), login.try_get(1), login.try_get(2), login.try_get(3));
    let (name, superuser, bypasses, owns): (String, bool, bool, bool) =
        (read.0.map_err(failed)?, read.1.map_err(failed)?, read.2.map_err(failed)?, {
            read.3.map_err(failed)?
        });
    match login.try_get::<_, Option<bool>>(4).map_err(failed)? {
        Some(true) => {
            client.batch_execute("SET ROLE onceward_engine").await.map_err(failed)?;
            let what = match (superuser, bypasses, owns) {
                (true, ..) => Some("is a superuser"),
                (_, true, _) => Some("bypasses row-level security"),
                (.., true) => Some("owns the tables"),
                _ => None,
            };
            warnings.extend(what.map(|what| {
                format!(
                    "the Postgres login {name} {what}: statements run as onceward_engine, which \
                     row-level security binds, but whoever has the login's password is not bound; \
                     use a login that is only a member of onceward_engine"
                )
            }));
        }
        // Without the role there is no store either, which is said more clearly.
        None => {}
        Some(false) if target.options.allows(Weakness::BypassRls) => {}
        Some(false) => {
            let at = target.shown();
            return Err(StoreError::Open(format!(
                "the login {name} at {at} may not work as onceward_engine; as the owner, run \
                 `GRANT onceward_engine TO \"{name}\"`"
            )));
        }
    }
    migrate::check(client, target).await?;
    let durability = look(client, target, &mut warnings).await?;
    // What was looked at holds for as long as the session does: the server's configuration may be
    // read anew at any time, and would make what is answered here less than it was promised to be.
    client.batch_execute(PINNED).await.map_err(failed)?;
    Ok(Standing { durability, warnings })
}

async fn look(
    client: &Client,
    target: &Target,
    warnings: &mut Vec<String>,
) -> Result<Durability, StoreError> {
    let failed = |error: Error| target.unreachable(&error);
    let tables: &[&str] = &OF_TENANTS;
    let server = client.query_one(SERVER, &[&tables]).await.map_err(failed)?;
    let (fsync, commit): (&str, &str) =
        (server.try_get(0).map_err(failed)?, server.try_get(1).map_err(failed)?);
    let replica: bool = server.try_get(2).map_err(failed)?;
    let unbound: Vec<String> = server.try_get(3).map_err(failed)?;
    if replica {
        let what = "the server is a replica: it can't write, and shows what was a moment ago";
        allowed(target, Weakness::Replica, what)?;
        warnings.push(what.into());
    }
    if !unbound.is_empty() {
        let what = format!(
            "row-level security does not bind this role on {}: only the program keeps tenants \
             apart",
            unbound.join(", ")
        );
        allowed(target, Weakness::BypassRls, &what)?;
        warnings.push(what);
    }
    if fsync == "off" {
        let what = "fsync is off: a power loss may lose everything";
        allowed(target, Weakness::NoFsync, what)?;
        return Ok(Durability::Weak("fsync=off"));
    }
    if commit == "off" {
        let what = "synchronous_commit is off: a crash loses what was answered just before";
        allowed(target, Weakness::AsyncCommit, what)?;
        return Ok(Durability::Weak("synchronous_commit=off"));
    }
    Ok(Durability::Full)
}

fn allowed(target: &Target, weakness: Weakness, what: &str) -> Result<(), StoreError> {
    if target.options.allows(weakness) {
        return Ok(());
    }
    let (at, name) = (target.shown(), weakness.as_str());
    Err(StoreError::Open(format!(
        "{at} is refused: {what}. Mend that, or allow it by name with ?allow={name} in the URL"
    )))
}
