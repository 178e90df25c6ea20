//! The statements, each in a file of its own under `sql/`, by name.
//!
//! What a statement is for, and the race that it closes, is said in its file. The test below shows
//! that each finds its rows by an index; nothing here runs anything.

macro_rules! statements {
    ($($name:ident = $file:literal,)*) => {
        $(pub(super) const $name: &str = include_str!(concat!("sql/", $file, ".sql"));)*
        #[cfg(test)]
        pub(super) const ALL: &[(&str, &str)] = &[$(($file, $name),)*];
    };
}

statements! {
    INSERT_RECORD = "insert_record",
    UPDATE_RECORD = "update_record",
    UPDATE_IF_FENCE = "update_if_fence",
    UPDATE_IF_REV = "update_if_rev",
    DELETE_RECORD = "delete_record",
    FIND_RECORD = "find_record",
    FIND_NAME = "find_name",
    FIND_YOUNG = "find_young",
    LIST_YOUNG_NAMES = "list_young_names",
    LIST_NAMES = "list_names",
    INDEX_NAME = "index_name",
    DELETE_NAME = "delete_name",
    LOAD_RECORD = "load_record",
    LOAD_NAMED = "load_named",
    INSERT_OUTCOME = "insert_outcome",
    DELETE_OUTCOME = "delete_outcome",
    INSERT_PAYLOAD = "insert_payload",
    DELETE_PAYLOAD = "delete_payload",
    LOAD_PAYLOAD = "load_payload",
    LOAD_SMALL_PAYLOAD = "load_small_payload",
    FIND_MARK = "find_mark",
    PUT_MARK = "put_mark",
    INSERT_AUDIT = "insert_audit",
    PRUNE_AUDIT = "prune_audit",
    FIND_TOKEN = "find_token",
    INSERT_TOKEN = "insert_token",
    OLDEST_TOKEN = "oldest_token",
    TOKEN_AT = "token_at",
    PURGE_TOKENS = "purge_tokens",
    READ_LEASES_ANEW = "read_leases_anew",
    WRITE_LEASES_ANEW = "write_leases_anew",
    READ_META = "read_meta",
    READ_REACHED = "read_reached",
    WRITE_META = "write_meta",
    LIST_RECORDS = "list_records",
    LIST_RECORDS_OF_TENANT = "list_records_of_tenant",
    LIST_YOUNG = "list_young",
    LIST_YOUNG_OF_TENANT = "list_young_of_tenant",
    LIST_YOUNG_WHOLE = "list_young_whole",
    NEXT_PRIORITY = "next_priority",
    LIST_DUE = "list_due",
    LIST_SWEEPABLE = "list_sweepable",
    LIST_MARK_NAMES = "list_mark_names",
    LIST_MARKS = "list_marks",
    LIST_MARKS_OF_ALL = "list_marks_of_all",
    LIST_AUDIT = "list_audit",
    LIST_AUDIT_OF_TENANT = "list_audit_of_tenant",
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    /// The steps of a statement's plan, on a schema that was never analysed.
    fn plan(connection: &Connection, statement: &str) -> Vec<String> {
        let mut explain = connection.prepare(&format!("EXPLAIN QUERY PLAN {statement}")).unwrap();
        let steps = explain.raw_query().mapped(|row| row.get(3)).collect::<Result<_, _>>();
        steps.unwrap()
    }

    #[test]
    fn every_statement_finds_its_rows_by_an_index() {
        let mut connection = Connection::open_in_memory().unwrap();
        super::super::migrate::migrate(&mut connection, "memory".as_ref()).unwrap();
        for (name, statement) in super::ALL {
            for step in plan(&connection, statement) {
                // Neither end of an index is searched for, so SQLite calls it a scan.
                let ends = *name == "oldest_token" && !step.contains("SCAN tokens");
                let sought = step.starts_with("SEARCH") && !step.contains("AUTOMATIC");
                // Ties are sorted by key; whole lists never are, but for the few young records.
                let ties = step.starts_with("USE TEMP B-TREE FOR LAST");
                let young = name.starts_with("list_young") && step.starts_with("USE TEMP B-TREE");
                assert!(sought || ties || young || ends, "{name}: {step}");
            }
        }
    }

    #[test]
    fn lists_walk_the_index_that_has_their_order() {
        let mut connection = Connection::open_in_memory().unwrap();
        super::super::migrate::migrate(&mut connection, "memory".as_ref()).unwrap();
        let table = [
            (super::LIST_RECORDS, "PRIMARY KEY ((tenant,kind,name)>"),
            (super::LIST_RECORDS_OF_TENANT, "PRIMARY KEY (tenant=? AND kind=? AND"),
            (super::NEXT_PRIORITY, "records_due (queue=? AND priority<?)"),
            (super::LIST_DUE, "records_due (queue=? AND priority=? AND due_at>? AND due_at<?)"),
            (super::LIST_SWEEPABLE, "records_sweep (sweep_at>? AND sweep_at<?)"),
            (super::LIST_MARKS, "sqlite_autoindex_marks_1 (tenant=? AND name>?)"),
            (super::LIST_MARKS_OF_ALL, "sqlite_autoindex_marks_1 ((tenant,name)>"),
            (super::LIST_AUDIT, "INTEGER PRIMARY KEY (rowid>?)"),
            (super::LIST_AUDIT_OF_TENANT, "audit_time (tenant=? AND at>? AND at<?)"),
        ];
        for (statement, index) in table {
            let steps = plan(&connection, statement);
            assert!(steps[0].contains(index), "{steps:?} should use {index}");
        }
    }
}
