//! The Postgres store under the conformance suite.

mod support;

use support::postgres::PostgresHarness;

onceward::conformance_tests!(PostgresHarness::default());
