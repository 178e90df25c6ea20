//! Measuring: rounds of operations, their latencies in bounded memory, medians.
//!
//! Machines are noisy, so what is compared is measured in short alternating rounds, and a ratio is
//! the median of the rounds' own ratios: a slow second hurts both sides of it.

use std::time::{Duration, Instant};

/// Rounds that a part is cut into; odd, so that the median is one of them.
pub(crate) const ROUNDS: u32 = 5;

/// Sub-buckets per doubling of a latency: values are kept to within 1/64.
const SUB: u64 = 64;
const SUB_BITS: u32 = 6;

/// Latencies in microseconds, in buckets that grow with the value.
#[derive(Debug, Clone, Default)]
pub(crate) struct Latencies {
    buckets: Vec<u64>,
    count: u64,
}

impl Latencies {
    /// Notes one.
    pub(crate) fn add(&mut self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        let index = index(micros);
        if index >= self.buckets.len() {
            self.buckets.resize(index + 1, 0);
        }
        self.buckets[index] += 1;
        self.count += 1;
    }

    /// Notes all of another's.
    pub(crate) fn merge(&mut self, other: &Self) {
        if other.buckets.len() > self.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
    }

    /// The latency, in milliseconds, that this share of all stays at or below.
    pub(crate) fn quantile_ms(&self, share: f64) -> f64 {
        let rank = (share * self.count as f64).ceil() as u64;
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank && *count > 0 {
                return value(index) as f64 / 1_000.0;
            }
        }
        0.0
    }
}

fn index(micros: u64) -> usize {
    if micros < SUB {
        return micros as usize;
    }
    let shift = micros.ilog2() - SUB_BITS;
    (u64::from(shift + 1) * SUB + ((micros >> shift) - SUB)) as usize
}

fn value(index: usize) -> u64 {
    let index = index as u64;
    if index < SUB {
        return index;
    }
    let shift = index / SUB - 1;
    (SUB + index % SUB) << shift
}

/// What one round did.
#[derive(Debug, Clone, Default)]
pub(crate) struct Round {
    /// Operations, as the figure counts them.
    pub(crate) operations: u64,
    /// How long it took.
    pub(crate) elapsed: Duration,
    /// How long each call took.
    pub(crate) latencies: Latencies,
}

impl Round {
    /// Calls `step` until the time is over; it answers how many operations it did.
    pub(crate) fn measure<E>(
        time: Duration,
        mut step: impl FnMut() -> Result<u64, E>,
    ) -> Result<Self, E> {
        let started = Instant::now();
        let mut round = Self::default();
        let mut before = started;
        while before.duration_since(started) < time {
            round.operations += step()?;
            let after = Instant::now();
            round.latencies.add(after - before);
            before = after;
        }
        round.elapsed = started.elapsed();
        Ok(round)
    }

    /// Adds what another caller did in the same time.
    pub(crate) fn join(&mut self, other: &Self) {
        self.operations += other.operations;
        self.elapsed = self.elapsed.max(other.elapsed);
        self.latencies.merge(&other.latencies);
    }

    fn per_second(&self) -> f64 {
        self.operations as f64 / self.elapsed.as_secs_f64().max(f64::EPSILON)
    }
}

/// All rounds of one figure.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    name: String,
    rates: Vec<f64>,
    cpu_us: Vec<f64>,
    latencies: Latencies,
}

/// The processor time that this process has used, all threads together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cpu(Duration);

impl Cpu {
    /// As of now.
    pub(crate) fn now() -> Self {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
        Self(Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default()))
    }
}

/// What is reported of a series.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figure {
    /// What was measured.
    pub(crate) name: String,
    /// The median of the rounds.
    pub(crate) per_second: f64,
    /// Half of all calls took at most this.
    pub(crate) p50_ms: f64,
    /// All but one of a hundred took at most this.
    pub(crate) p99_ms: f64,
    /// Processor time of one operation, in microseconds: it tells costs also on a busy machine.
    pub(crate) cpu_us: f64,
}

impl Series {
    /// Without rounds.
    pub(crate) fn new(name: impl Into<String>) -> Self {
        let (rates, cpu_us) = (Vec::new(), Vec::new());
        Self { name: name.into(), rates, cpu_us, latencies: Latencies::default() }
    }

    /// Adds a round; `before` was read when it began.
    pub(crate) fn add(&mut self, before: Cpu, round: &Round) {
        let used = Cpu::now().0.saturating_sub(before.0);
        self.cpu_us.push(used.as_secs_f64() * 1e6 / round.operations.max(1) as f64);
        self.rates.push(round.per_second());
        self.latencies.merge(&round.latencies);
    }

    /// What is reported.
    pub(crate) fn figure(&self) -> Figure {
        Figure {
            name: self.name.clone(),
            per_second: median(&self.rates),
            p50_ms: self.latencies.quantile_ms(0.5),
            p99_ms: self.latencies.quantile_ms(0.99),
            cpu_us: median(&self.cpu_us),
        }
    }

    /// How this compares with a series whose rounds alternated with its own.
    pub(crate) fn versus(&self, other: &Self) -> f64 {
        let pairs = self.rates.iter().zip(&other.rates);
        let quotients: Vec<f64> = pairs.map(|(mine, theirs)| mine / theirs).collect();
        median(&quotients)
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[count / 2],
        count => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_keep_values_to_within_a_64th() {
        for micros in (0..5_000).chain([10_000, 123_456, 99_999_999, u64::MAX]) {
            let kept = value(index(micros));
            assert!(kept <= micros && micros - kept <= micros / SUB, "{micros} became {kept}");
        }
    }

    #[test]
    fn quantiles_are_read_off() {
        let mut latencies = Latencies::default();
        for ms in 1..=100 {
            latencies.add(Duration::from_millis(ms));
        }
        assert!((latencies.quantile_ms(0.5) - 50.0).abs() < 1.0);
        assert!((latencies.quantile_ms(0.99) - 99.0).abs() < 2.0);
        assert!(Latencies::default().quantile_ms(0.5) < f64::EPSILON);
    }

    #[test]
    fn a_ratio_is_the_median_of_the_rounds_ratios() {
        let series = |rates: &[f64]| Series { rates: rates.to_vec(), ..Series::new("x") };
        let (fast, slow) = (series(&[4.0, 400.0, 40.0]), series(&[2.0, 100.0, 20.0]));
        assert!((fast.versus(&slow) - 2.0).abs() < f64::EPSILON);
        assert!((fast.figure().per_second - 40.0).abs() < f64::EPSILON);
    }
}
