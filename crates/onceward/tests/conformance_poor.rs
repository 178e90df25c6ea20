//! The poor store under the conformance suite.

use onceward::testing::harness::PoorHarness;

onceward::conformance_tests!(PoorHarness::default());
