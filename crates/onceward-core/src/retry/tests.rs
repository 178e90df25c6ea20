//! Retry schedules: the two of the contract, and that no other one misbehaves.

use proptest::prelude::*;

use super::*;

#[track_caller]
fn check_ranges(backoff: Backoff, table: &[(u64, u64)]) {
    for (index, &(low, high)) in table.iter().enumerate() {
        let attempt = u32::try_from(index).expect("small") + 1;
        assert_eq!(backoff.delay_ms(attempt, 0), Some(low), "shortest after {attempt}");
        assert_eq!(backoff.delay_ms(attempt, u64::MAX), Some(high), "longest after {attempt}");
    }
    let made = u32::try_from(table.len()).expect("small") + 1;
    assert_eq!(backoff.delay_ms(made, 0), None, "there is no attempt after the last");
    assert_eq!(backoff.delay_ms(u32::MAX, 0), None);
    assert_eq!(backoff.delay_ms(0, u64::MAX), Some(0));
    assert_eq!(backoff.total_ms_max(), table.iter().map(|(_, high)| high).sum::<u64>());
}

#[test]
fn a14_clients_wait_200_to_500_ms_at_first_and_at_most_5_s() {
    check_ranges(CLIENT_BACKOFF, &[(200, 500), (400, 1000), (800, 2000), (1600, 4000)]);
    let longer = Backoff { attempts: 8, ..CLIENT_BACKOFF };
    // At the cap the jitter goes down from it, never below the first delay.
    assert_eq!(longer.delay_ms(5, u64::MAX), Some(5000));
    assert_eq!(longer.delay_ms(7, 0), Some(200));
    assert_eq!(longer.delay_ms(7, u64::MAX), Some(5000));
}

#[test]
fn a20_jobs_wait_from_1_s_with_jitter_up_to_half() {
    check_ranges(JOB_BACKOFF, &[(1000, 1500), (2000, 3000), (4000, 6000), (8000, 12_000)]);
}

#[test]
fn the_total_is_found_without_counting_to_four_billion() {
    let constant = Backoff { factor: 1, attempts: u32::MAX, jitter_percent: 0, ..JOB_BACKOFF };
    assert_eq!(constant.total_ms_max(), 1000 * (u64::from(u32::MAX) - 1));
    let never = Backoff { attempts: 0, ..JOB_BACKOFF };
    assert_eq!((never.total_ms_max(), never.delay_ms(0, 0)), (0, None));
    let endless = Backoff { max_ms: u64::MAX, attempts: u32::MAX, ..JOB_BACKOFF };
    assert_eq!(endless.total_ms_max(), u64::MAX);
}

proptest! {
    #[test]
    fn delays_stay_in_bounds_and_follow_the_random_number(
        first_ms: u64, max_ms: u64, factor: u32, jitter_percent: u32, attempts: u32,
        attempt: u32, random: u64, other: u64,
    ) {
        let backoff = Backoff { first_ms, max_ms, factor, jitter_percent, attempts };
        let delay = backoff.delay_ms(attempt, random);
        prop_assert_eq!(delay.is_some(), attempt < attempts);
        if let (Some(delay), true) = (delay, attempt > 0) {
            prop_assert!(delay <= max_ms);
            prop_assert!(delay >= first_ms.min(max_ms));
            let again = backoff.delay_ms(attempt, other).unwrap_or(0);
            prop_assert_eq!(random.cmp(&other).is_le() && delay > again, false);
        }
        prop_assert!(backoff.total_ms_max() >= delay.filter(|_| attempt > 0).unwrap_or(0));
    }

    #[test]
    fn the_total_is_the_sum_of_the_longest_delays(
        first_ms in 0..10_000_u64, max_ms in 0..100_000_u64, factor in 0..5_u32,
        jitter_percent in 0..300_u32, attempts in 0..60_u32,
    ) {
        let backoff = Backoff { first_ms, max_ms, factor, jitter_percent, attempts };
        let sum: u64 = (1..attempts).filter_map(|made| backoff.delay_ms(made, u64::MAX)).sum();
        prop_assert_eq!(backoff.total_ms_max(), sum);
    }
}
