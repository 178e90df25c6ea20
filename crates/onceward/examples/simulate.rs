//! Runs schedules of the deterministic simulator.
//!
//! `cargo run --release -p onceward --features testing --example simulate -- --schedules 1000000`
//!
//! `--seed` is the first seed, `--shape` keeps to one kind of schedule (`leases`, `jobs`, …), and
//! `--trace` prints what one seed does. Exits with 1 when an invariant breaks.

#![allow(clippy::print_stdout, reason = "an example talks to the one who runs it")]

use std::process::ExitCode;
use std::time::Instant;

use onceward::testing::sim::{Shape, Simulator};

struct Wanted {
    schedules: u64,
    seed: u64,
    shape: Option<Shape>,
    trace: bool,
}

fn main() -> ExitCode {
    match wanted(std::env::args().skip(1)).and_then(|wanted| simulate(&wanted)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn wanted(mut words: impl Iterator<Item = String>) -> Result<Wanted, String> {
    let mut wanted = Wanted { schedules: 2_000, seed: 1, shape: None, trace: false };
    while let Some(word) = words.next() {
        if word == "--trace" {
            wanted.trace = true;
            continue;
        }
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        let number = || value.parse().map_err(|_| format!("{word} needs a number, not `{value}`"));
        match word.as_str() {
            "--schedules" => wanted.schedules = number()?,
            "--seed" => wanted.seed = number()?,
            "--shape" => {
                let named = |shape: &Shape| format!("{shape:?}").eq_ignore_ascii_case(&value);
                let known = format!("{:?}", Shape::ALL);
                let shape = Shape::ALL.into_iter().find(named);
                wanted.shape = Some(shape.ok_or(format!("`{value}` is not one of {known}"))?);
            }
            other => {
                return Err(format!("unknown `{other}`: --schedules, --seed, --shape, --trace"));
            }
        }
    }
    Ok(wanted)
}

fn simulate(wanted: &Wanted) -> Result<(), String> {
    let mut simulator = Simulator::new().map_err(|error| error.to_string())?;
    if wanted.trace {
        for line in simulator.trace(wanted.seed, wanted.shape) {
            println!("{line}");
        }
    }
    let begun = Instant::now();
    for seed in wanted.seed..wanted.seed.saturating_add(wanted.schedules) {
        simulator.run(seed, wanted.shape).map_err(|failure| failure.to_string())?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let tally = simulator.tally();
    println!(
        "{} schedules in {seconds:.1} s, {:.0} per second on one core, nothing broken",
        tally.schedules,
        wanted.schedules as f64 / seconds
    );
    println!("{tally}");
    Ok(())
}
