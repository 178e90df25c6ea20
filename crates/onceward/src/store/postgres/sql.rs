//! The statements, each in a file of its own under `sql/`, by name.
//!
//! What a statement is for, and the race that it closes, is said in its file. Those of commits and
//! loads are prepared once per session; those of lists are planned each time, because the best plan
//! depends on which filters are given. Nothing here runs anything.

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
    Lock = "lock",
    Draw = "draw",
    Now = "now",
    FindRecords = "find_records",
    FindMarks = "find_marks",
    FindTokens = "find_tokens",
    LoadRecords = "load_records",
    LoadMarks = "load_marks",
    PutRecords = "put_records",
    PutOutcomes = "put_outcomes",
    PutPayloads = "put_payloads",
    DeleteRecords = "delete_records",
    DeleteOutcomes = "delete_outcomes",
    DeletePayloads = "delete_payloads",
    PutMarks = "put_marks",
    MoveMarks = "move_marks",
    InsertAudit = "insert_audit",
    InsertTokens = "insert_tokens",
    PurgeTokens = "purge_tokens",
}

pub(super) const LIST_RECORDS: &str = include_str!("sql/list_records.sql");
pub(super) const LIST_RECORDS_OF_TENANT: &str = include_str!("sql/list_records_of_tenant.sql");
pub(super) const LIST_DUE: &str = include_str!("sql/list_due.sql");
pub(super) const LIST_SWEEPABLE: &str = include_str!("sql/list_sweepable.sql");
pub(super) const LIST_MARKS: &str = include_str!("sql/list_marks.sql");
pub(super) const LIST_AUDIT: &str = include_str!("sql/list_audit.sql");
