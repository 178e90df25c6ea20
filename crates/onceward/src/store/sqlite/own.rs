//! The caller's own SQL in the store's transaction: what is asked of the writer, and what such SQL
//! may not do.
//!
//! The rule kept here: the writer owns the transaction. While the caller's SQL runs, what
//! would end it, open other files, change settings or write the store's tables are refused by
//! SQLite itself. The savepoint around it is the writer's (`writer.rs`); what the batch says is
//! decided above (`engine/own.rs`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use onceward_core::batch::Batch;
use rusqlite::Connection;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

use super::Shared;

/// The tables that only the store writes.
const TABLES: [&str; 8] =
    ["records", "names", "outcomes", "payloads", "marks", "audit", "tokens", "meta"];

/// Work in the store's transaction, for the writer thread: no await, and it may come twice.
pub trait OwnSql: Send + Sync {
    /// What has to hold before the work runs, under the token of the batch that it makes.
    fn template(&self) -> Arc<Batch>;

    /// Does the work in a savepoint and answers the batch that commits with it. `None`: it failed,
    /// and everything that it wrote is taken back.
    fn run(&self, connection: &Connection) -> Option<Arc<Batch>>;
}

/// Has SQLite refuse what the caller's own SQL may not do, from now on.
pub(super) fn guard(connection: &mut Connection, shared: &Arc<Shared>) -> rusqlite::Result<()> {
    let shared = shared.clone();
    connection.authorizer(Some(move |context: AuthContext<'_>| {
        // Asked when a statement is prepared; ours were, before anybody else's began.
        if shared.own_sql.load(Ordering::Relaxed) && forbidden(&context.action) {
            Authorization::Deny
        } else {
            Authorization::Allow
        }
    }))
}

fn forbidden(action: &AuthAction<'_>) -> bool {
    match action {
        AuthAction::Transaction { .. }
        | AuthAction::Attach { .. }
        | AuthAction::Detach { .. }
        | AuthAction::Pragma { pragma_value: Some(_), .. } => true,
        AuthAction::Insert { table_name }
        | AuthAction::Update { table_name, .. }
        | AuthAction::Delete { table_name }
        | AuthAction::DropTable { table_name }
        | AuthAction::AlterTable { table_name, .. }
        | AuthAction::CreateIndex { table_name, .. }
        | AuthAction::CreateTrigger { table_name, .. }
        | AuthAction::CreateTempTrigger { table_name, .. }
        | AuthAction::DropIndex { table_name, .. } => {
            TABLES.iter().any(|ours| ours.eq_ignore_ascii_case(table_name))
        }
        // The writer's own, which several callers share.
        AuthAction::Savepoint { savepoint_name, .. } => {
            savepoint_name.eq_ignore_ascii_case("own_sql")
        }
        _ => false,
    }
}
