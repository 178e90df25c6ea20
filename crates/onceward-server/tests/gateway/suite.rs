//! One table, two targets, four places for the records: every case runs against the gateway and
//! against the tower layer, on SQLite, on Postgres, on Postgres with every replay from Redis, and
//! on DynamoDB.

use super::cases;
use super::servers::On;
use super::target::{Setup, Target};

/// Each line is a case and what it changes of the defaults.
macro_rules! suite {
    ($($name:ident: $changes:tt;)*) => {
        suite_on! { gateway, gateway, On::Sqlite, $($name: $changes;)* }
        suite_on! { layer, layer, On::Sqlite, $($name: $changes;)* }
        suite_on! { gateway_on_postgres, gateway, On::Postgres, $($name: $changes;)* }
        suite_on! { layer_on_postgres, layer, On::Postgres, $($name: $changes;)* }
        suite_on! { gateway_with_redis, gateway, On::PostgresAndRedis, $($name: $changes;)* }
        suite_on! { layer_with_redis, layer, On::PostgresAndRedis, $($name: $changes;)* }
        #[cfg(feature = "dynamodb")]
        suite_on! { gateway_on_dynamodb, gateway, On::DynamoDb, $($name: $changes;)* }
        #[cfg(feature = "dynamodb")]
        suite_on! { layer_on_dynamodb, layer, On::DynamoDb, $($name: $changes;)* }
    };
}

macro_rules! suite_on {
    (
        $module:ident, $target:ident, $on:expr,
        $($name:ident: { $($field:ident: $value:expr),* };)*
    ) => {
        mod $module {
            use super::*;
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let setup = Setup { on: $on, $($field: $value,)* ..Setup::default() };
                let name = concat!(stringify!($module), "-", stringify!($name));
                cases::$name(Target::$target(name, &setup).await).await;
            })*
        }
    };
}

suite! {
    a04_reads_pass_without_a_key_or_an_identity: {};
    a05_keys_are_checked_before_anything_is_looked_up: {};
    a05_a_quoted_key_and_a_raw_one_are_the_same: {};
    a06_keys_are_apart_by_caller_method_and_path: {};
    a07_spelling_does_not_matter: {};
    r11_a_form_counts_by_field: {};
    r11_an_upload_replays_whatever_its_boundary: {};
    r11_what_differs_beside_the_body_is_named: {};
    r11_parameters_of_a_media_type_count_where_they_say_something: {};
    a08_a_replay_is_the_original_byte_for_byte: {};
    a08_only_stored_headers_are_replayed: {};
    a09_another_payload_is_a_mismatch: {};
    a09_a_mismatch_is_told_while_the_first_runs: {};
    a17_what_was_not_stored_runs_again: {};
    a25_a_request_has_an_id: {};
    a25_a_replay_tells_the_correlation_id_of_the_original: {};
    fifty_duplicates_at_once_are_one_execution: {};
    ruling_5_a_duplicate_is_in_flight_when_its_wait_is_over: { wait_ms: 1 };
    no_identity_no_claim: {};
    without_a_key_nothing_is_remembered: {};
    what_only_we_may_say_is_removed_both_ways: {};
    upstream_sees_key_fence_attempt_and_request_id: {};
    binary_chunked_and_compressed_answers_are_replayed: {};
    a_chunked_request_is_the_same_as_one_with_a_length: {};
    a_large_answer_is_passed_on_once: { max_stored_bytes: 1_000 };
    a_streamed_answer_is_passed_on_live: {};
    a_body_over_the_bound_is_refused_and_leaves_nothing: { max_request_bytes: 1_000 };
    bodies_without_a_canonical_form_are_refused: {};
    i03_a_client_that_leaves_finds_its_answer_later: {};
    i19_who_leaves_while_waiting_leaves_no_trace: {};
    a_reset_without_an_answer_may_be_retried: {};
    half_an_answer_is_no_answer: {};
    ruling_6_under_hold_an_unknown_outcome_stays_unknown: { hold: true };
    a_lease_is_renewed_while_the_work_goes_on: { lease_ms: 900, wait_ms: 1 };
    expect_100_continue_is_answered: {};
    peer_d1_an_upgrade_that_is_offered_is_ignored: {};
    redirects_are_not_followed: {};
}
