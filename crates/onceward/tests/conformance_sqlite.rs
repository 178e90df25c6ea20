//! The SQLite store under the conformance suite.

mod support;

use support::sqlite::SqliteHarness;

onceward::conformance_tests!(SqliteHarness::default());
