//! The statements, each in a file of its own under `sql/`, by name.
//!
//! What a statement is for, and the race that it closes, is said in its file. Those of commits,
//! loads and due jobs are prepared once per session; those of other lists are planned each time,
//! because the best plan depends on which filters are given. Nothing here runs anything.

macro_rules! prepared {
    ($($name:ident = $file:literal,)*) => {
        /// A statement that every session prepares.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Sql { $($name,)* }

        impl Sql {
            /// All of them, in the order of their numbers.
            pub(super) const ALL: &[Self] = &[$(Self::$name,)*];

            /// What the server gets.
            pub(super) const fn text(self) -> &'static str {
                match self { $(Self::$name => include_str!(concat!("sql/", $file, ".sql")),)* }
            }
        }
    };
}

prepared! {
    ApplyGroup = "apply_group",
    ApplyLean = "apply_lean",
    Load = "load",
    ListDue = "list_due",
    Now = "now",
    SetTenant = "set_tenant",
    Want = "want",
    WantedState = "wanted_state",
}

pub(super) const PRUNE_AUDIT: &str = include_str!("sql/prune_audit.sql");
pub(super) const LIST_RECORDS: &str = include_str!("sql/list_records.sql");
pub(super) const LIST_RECORDS_OF_TENANT: &str = include_str!("sql/list_records_of_tenant.sql");
pub(super) const LIST_SWEEPABLE: &str = include_str!("sql/list_sweepable.sql");
pub(super) const LIST_MARKS: &str = include_str!("sql/list_marks.sql");
pub(super) const LIST_MARKS_OF_ALL: &str = include_str!("sql/list_marks_of_all.sql");
pub(super) const LIST_AUDIT: &str = include_str!("sql/list_audit.sql");
pub(super) const LIST_AUDIT_OF_ALL: &str = include_str!("sql/list_audit_of_all.sql");
