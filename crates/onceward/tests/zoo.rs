//! The gate of the bug zoo: every planted bug is caught within its budget, and without a bug the
//! same hunters find nothing.
//!
//! One test in a binary of its own, because planting is process-wide.

use onceward::core::zoo::Bug;
use onceward::testing::zoo::{Hunter, hunt, hunt_for, search};

/// Schedules that must be clean when nothing is planted.
const CLEAN: u64 = 20_000;

#[test]
fn every_planted_bug_is_caught_within_its_budget() {
    let mut missed = Vec::new();
    println!("{:26} {:>9} {:>7}  caught by", "bug", "schedules", "budget");
    for bug in Bug::ALL {
        let wanted = hunt_for(*bug);
        let name = format!("{bug:?}");
        match hunt(&wanted).expect("the hunter works") {
            Some(catch) => {
                println!("{name:26} {:>9} {:>7}  {catch}", catch.schedules, wanted.budget);
            }
            None => {
                println!("{name:26} {:>9} {:>7}  NOTHING", "-", wanted.budget);
                missed.push(name);
            }
        }
    }
    assert!(missed.is_empty(), "not caught within their budgets: {missed:?}");

    for bug in Bug::ALL {
        let wanted = hunt_for(*bug);
        let found = search(wanted.hunter, wanted.budget).expect("the hunter works");
        assert_eq!(found, None, "the hunter of {bug:?} finds something where nothing is planted");
    }
    let found = search(Hunter::Schedules(None), CLEAN).expect("the hunter works");
    assert_eq!(found, None, "something is broken where nothing is planted");
    println!("{} bugs caught; without one, {CLEAN} schedules are clean", Bug::ALL.len());
}
