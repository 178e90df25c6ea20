//! The memory store under the conformance suite.

use onceward::testing::harness::MemoryHarness;

onceward::conformance_tests!(MemoryHarness::default());
