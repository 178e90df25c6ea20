//! The conformance suite: one case per sentence of the store contract, for any store.
//!
//! A store's test file gives its harness to [`crate::conformance_tests!`] and gets one named test
//! per case. [`run_all`] runs them one after the other and reports all that failed. A case takes a
//! fresh store; what a store can't do by its capabilities is tested to be refused. Cases speak of
//! what the contract says and of nothing else: how a store does it is its own tests' business.

pub mod bench;

pub mod audits;
pub mod batches;
pub mod failures;
pub mod groups;
pub mod limits;
pub mod lists;
pub mod marks;
pub mod reads;
pub mod settled;
pub mod stamps;
pub mod tokens;
pub mod watch;

use std::fmt;

use bench::{Bench, CaseFuture, Checked, Failure, boxed};

use super::harness::Harness;

/// One case of the suite.
#[derive(Clone, Copy)]
pub struct Case {
    /// Section and name.
    pub name: &'static str,
    /// The case itself.
    pub run: for<'a> fn(&'a mut Bench<'_>) -> CaseFuture<'a>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// What a run over all cases came to.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Cases that passed.
    pub passed: Vec<&'static str>,
    /// Cases that failed, and why.
    pub failed: Vec<(&'static str, Failure)>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cases passed, {} failed", self.passed.len(), self.failed.len())?;
        self.failed.iter().try_for_each(|(name, failure)| write!(f, "\n{name}: {failure}"))
    }
}

/// Runs every case, each on a fresh store.
pub async fn run_all(harness: &dyn Harness) -> Report {
    let mut report = Report::default();
    for case in CASES {
        match run(harness, case).await {
            Ok(()) => report.passed.push(case.name),
            Err(failure) => report.failed.push((case.name, failure)),
        }
    }
    report
}

/// Runs the case of this name on a fresh store.
///
/// # Errors
/// When it fails, or there is none of this name.
pub async fn run_one(harness: &dyn Harness, name: &str) -> Checked {
    match CASES.iter().find(|case| case.name == name) {
        Some(case) => run(harness, case).await,
        None => Err(Failure::new(format!("there is no case {name:?}"))),
    }
}

/// What each generated test does: runs one case on a runtime of its own.
///
/// A plain function of this crate, because a runtime's code is large and would otherwise be
/// compiled anew for each of a hundred tests in each store's test file.
///
/// # Panics
/// When the case fails: that is how a test says so.
#[expect(clippy::panic, reason = "a test that fails panics")]
pub fn check(harness: &dyn Harness, name: &str) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let checked = match runtime {
        Ok(runtime) => runtime.block_on(run_one(harness, name)),
        Err(error) => Err(Failure::new(format!("no runtime: {error}"))),
    };
    if let Err(failure) = checked {
        panic!("{name}: {failure}");
    }
}

async fn run(harness: &dyn Harness, case: &Case) -> Checked {
    let mut bench = Bench::open(harness).await?;
    (case.run)(&mut bench).await
}

/// Hands the sections and names of all cases to another macro.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_cases {
    ([$($with:tt)*] $args:tt) => {
        $($with)*! { $args
            batches {
                absent_holds_without_a_record,
                absent_fails_with_a_record,
                rev_is_holds_for_the_current_rev,
                rev_is_fails_for_any_other,
                fence_is_holds_for_the_current_fence,
                fence_is_fails_for_any_other,
                position_is_holds_at_the_position,
                position_is_fails_anywhere_else,
                position_at_most_holds_at_and_below,
                position_at_most_fails_above,
                all_writes_of_a_batch_happen,
                i11_a_refused_batch_writes_nothing,
                a_refusal_names_each_failed_condition,
                a_refusal_shows_what_is_there,
                conditions_without_writes_are_answered,
                a_record_comes_back_as_it_was_put,
                a_put_replaces_the_whole_record,
                bodies_are_set_kept_and_cleared,
                a_delete_takes_outcome_and_payload_along,
                deleting_nothing_is_applied,
                of_many_first_claims_one_wins,
                of_many_writers_of_one_rev_one_wins,
            }
            groups {
                an_empty_group_has_no_answers,
                a_group_answers_as_one_by_one,
                i26_a_refusal_does_not_touch_its_neighbours,
                a_full_group_is_answered_in_order,
                a_group_past_the_maximum_is_whole_or_nothing,
                a_group_reads_the_clock_once,
                a_resend_in_a_group_is_recognised,
            }
            failures {
                a_closed_store_does_nothing,
                nothing_of_a_closed_store_happens_later,
                i09_a_failure_before_leaves_nothing,
                i09_a_lost_answer_is_recognised,
                i09_every_method_survives_a_fault,
                i27_absent_after_a_lost_answer_is_not_not_applied,
                i27_a_delayed_duplicate_changes_nothing,
                i20_an_invalid_batch_leaves_nothing_of_its_group,
                i02_what_was_answered_is_there_after_a_reopen,
            }
            reads {
                facts_come_in_the_order_of_the_reads,
                a_payload_comes_only_when_asked_for,
                an_empty_load_tells_the_time,
                a_load_sees_every_answered_commit,
                a_load_looks_at_one_instant,
                a_large_load_is_answered,
                i18_damaged_bytes_are_refused,
            }
            lists {
                records_come_in_the_order_of_their_keys,
                pages_follow_one_another,
                a_walk_goes_on_past_what_was_taken,
                an_unreadable_cursor_is_refused,
                the_last_page_has_no_next,
                records_are_filtered_by_tenant_scope_and_state,
                listed_records_are_whole,
                due_jobs_come_by_priority_then_longest_due,
                due_holds_what_may_be_taken_and_nothing_else,
                due_is_judged_by_the_clock,
                i18_damaged_records_stop_neither_queue_nor_sweep,
                sweepable_comes_longest_due_first,
                sweepable_holds_what_is_due_and_nothing_else,
                marks_come_in_the_order_of_their_names,
                marks_of_all_tenants_come_in_the_order_of_tenant_and_name,
                marks_are_found_by_prefix_alone,
                lists_see_commits_at_once_or_after_a_while,
                a_list_of_nothing_is_empty,
            }
            audits {
                audit_comes_in_the_order_of_commits,
                audit_is_filtered_by_each_field,
                audit_times_are_half_open,
                audit_entries_come_back_as_written,
            }
            settled {
                settled_entries_are_listed_once_in_a_lasting_order,
                pruned_entries_are_gone_and_their_numbers_stay_used,
            }
            limits {
                forty_writes_fit,
                forty_one_writes_do_not,
                two_mebibytes_fit,
                more_than_two_mebibytes_do_not,
                one_row_is_written_once,
                any_character_can_be_in_a_key,
                any_character_can_be_in_a_subject,
                the_longest_keys_fit,
                c10_keys_that_look_alike_never_collide,
                any_byte_can_be_in_a_body,
                the_largest_numbers_fit,
            }
            tokens {
                i09_a_put_that_comes_again_changes_nothing,
                i09_a_delete_that_comes_again_changes_nothing,
                i09_marks_that_come_again_change_nothing,
                i09_audit_that_comes_again_is_written_once,
                i09_conditions_that_come_again_are_answered,
                a_batch_is_recognised_after_other_writes,
                a_batch_is_recognised_by_its_first_put,
                a_late_duplicate_is_refused,
                a_refused_batch_may_come_again,
                tokens_are_compared_in_full,
                tokens_are_kept_for_a_quarter_of_an_hour,
                tokens_survive_a_reopen,
            }
            marks {
                a_mark_moves_to_its_position,
                marks_never_move_back,
                i29_grace_does_not_creep,
                a_value_is_set_kept_and_cleared,
                an_empty_value_is_a_value,
                a_mark_at_zero_is_there,
                a_write_dates_its_mark,
                a_mark_survives_the_records_of_its_name,
            }
            stamps {
                every_put_draws_a_higher_rev,
                revs_rise_across_records,
                revs_rise_in_the_order_of_the_writes,
                i25_stamps_rise_across_deletion,
                i05_every_grant_draws_a_higher_fence,
                a_grant_answers_its_fence,
                keep_leaves_the_fence,
                end_leaves_nobody,
                once_draws_and_ends,
                instants_are_the_now_of_the_commit,
                instants_are_kept_cleared_and_set,
                only_a_fresh_write_dates_the_creation,
                i08_the_clock_does_not_run_back,
                now_is_read_in_the_commit,
                stamps_rise_across_a_reopen,
                stamps_of_concurrent_commits_differ,
            }
            watch {
                a_watch_ends_with_a_change_or_is_unsupported,
            }
        }
    };
}

macro_rules! table {
    (() $($section:ident { $($case:ident,)* })*) => {
        /// Every case.
        pub const CASES: &[Case] = &[$($(Case {
            name: concat!(stringify!($section), "::", stringify!($case)),
            run: |bench| boxed($section::$case(bench)),
        },)*)*];
    };
}

__conformance_cases! { [table] () }

/// Makes each conformance case a test of its own, on the store that a harness opens.
///
/// The expression is evaluated once per test, outside of any runtime.
#[macro_export]
macro_rules! conformance_tests {
    ($harness:expr) => {
        $crate::__conformance_cases! { [$crate::__conformance_tests] ($harness) }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    (($harness:expr) $($section:ident { $($case:ident,)* })*) => {
        $(mod $section {
            #[allow(unused_imports, reason = "the harness may need anything of the test file")]
            use super::*;
            $(
                #[test]
                fn $case() {
                    let name = concat!(stringify!($section), "::", stringify!($case));
                    $crate::testing::conformance::check(&$harness, name);
                }
            )*
        })*
    };
}
