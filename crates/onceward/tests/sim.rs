//! The simulator in its short form. The long form is the example `simulate`.

use std::time::Instant;

use onceward::testing::sim::{Shape, Simulator};

/// Schedules of the short form.
const SCHEDULES: u64 = 30_000;

#[test]
fn i01_to_i29_hold_in_every_schedule_with_every_fault() {
    let mut simulator = Simulator::new().unwrap();
    let begun = Instant::now();
    for seed in 1..=SCHEDULES {
        if let Err(failure) = simulator.run(seed, None) {
            panic!("{failure}");
        }
    }
    let tally = simulator.tally();
    let rate = SCHEDULES as f64 / begun.elapsed().as_secs_f64();
    println!("{SCHEDULES} schedules, {rate:.0} per second\n{tally}");
    // A run that met no fault would prove nothing.
    let met = [
        ("effects", tally.effects),
        ("dropped", tally.dropped),
        ("duplicated", tally.duplicated),
        ("lost", tally.lost),
        ("delayed", tally.delayed),
        ("timed out", tally.timed_out),
        ("resent", tally.resent),
        ("crashed before", tally.crashed_before),
        ("crashed after", tally.crashed_after),
        ("crashed committing", tally.crashed_committing),
        ("paused", tally.paused),
        ("jumped", tally.jumped),
        ("lapsed", tally.lapsed),
        ("groups", tally.groups),
        ("other payloads", tally.other_payloads),
        ("sweeps", tally.sweeps),
        ("resolved", tally.resolved),
    ];
    for (what, times) in met {
        assert!(times > SCHEDULES / 50, "{what}: only {times} times in {SCHEDULES} schedules");
    }
}

#[test]
fn i23_the_same_seed_gives_the_same_trace() {
    let (mut one, mut two) = (Simulator::new().unwrap(), Simulator::new().unwrap());
    // The second simulator has run other schedules before: nothing of them may be left.
    for seed in 5_000..5_100 {
        two.run(seed, None).unwrap();
    }
    let mut hashes = Vec::new();
    for seed in 1..=500 {
        let hash = one.run(seed, None).unwrap();
        assert_eq!(two.run(seed, None).unwrap(), hash, "seed {seed}");
        hashes.push(hash);
    }
    for seed in 1..=50 {
        assert_eq!(one.trace(seed, None), two.trace(seed, None), "seed {seed}");
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert!(hashes.len() > 490, "different seeds give different traces: {}", hashes.len());
}

#[test]
fn every_shape_can_be_asked_for() {
    let mut simulator = Simulator::new().unwrap();
    for shape in Shape::ALL {
        for seed in 1..=300 {
            simulator.run(seed, Some(shape)).unwrap_or_else(|failure| panic!("{failure}"));
        }
        let named = format!("shape: {shape:?}");
        assert!(simulator.trace(1, Some(shape))[0].contains(&named));
    }
}
