//! The DynamoDB store under the conformance suite.

mod support;

use support::dynamodb::DynamoDbHarness;

onceward::conformance_tests!(DynamoDbHarness::default());
