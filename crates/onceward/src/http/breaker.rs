//! The circuit breaker: failures in a row stop requests for a while (A16).
//!
//! Closed, it counts failures in a row. Open, it refuses until its time is over. Half open, it lets
//! as many trials pass as have to succeed; the first failure opens it again. Pure: time is an
//! argument, and an answer to a question from before the last change of state changes nothing.

use onceward_core::limits::{LimitError, in_range};

/// Longest time that a breaker may stay open: an hour.
const OPEN_MS_MAX: u64 = 3_600_000;
/// Most failures or trials that can be asked for.
const COUNT_MAX: u64 = 10_000;

/// When a breaker opens and closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// Failures in a row that open it: no answer, or a status of 500 and above. Default: 5.
    pub failures: u32,
    /// How long it stays open before it lets a trial pass. Default: 10 s.
    pub open_ms: u64,
    /// Trials that have to succeed before it closes. Default: 1.
    pub trials: u32,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self { failures: 5, open_ms: 10_000, trials: 1 }
    }
}

impl BreakerPolicy {
    /// Checks every bound.
    ///
    /// # Errors
    /// The first field that breaks one.
    pub fn validate(&self) -> Result<(), LimitError> {
        in_range("failures", self.failures.into(), 1, COUNT_MAX)?;
        in_range("open", self.open_ms, 1, OPEN_MS_MAX)?;
        in_range("trials", self.trials.into(), 1, COUNT_MAX)
    }
}

/// How a request that was let pass ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// With an answer.
    Well,
    /// Without one, or with a status of 500 and above.
    Badly,
    /// It never reached the service: that says nothing about it.
    Unused,
}

/// Leave to pass, to be given back with how it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leave {
    /// Which stretch between two changes of state it belongs to.
    epoch: u64,
}

/// A breaker.
#[derive(Debug)]
pub(crate) struct Breaker {
    policy: BreakerPolicy,
    epoch: u64,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed { failures: u32 },
    Open { until_ms: u64 },
    HalfOpen { running: u32, succeeded: u32 },
}

impl Breaker {
    /// A closed one.
    pub(crate) fn new(policy: BreakerPolicy) -> Self {
        Self { policy, epoch: 0, state: State::Closed { failures: 0 } }
    }

    /// Whether everything passes.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed { .. })
    }

    /// Leave to pass, or after how many milliseconds to ask again.
    pub(crate) fn ask(&mut self, now_ms: u64) -> Result<Leave, u64> {
        if let State::Open { until_ms } = self.state {
            if now_ms < until_ms {
                return Err(until_ms - now_ms);
            }
            self.becomes(State::HalfOpen { running: 0, succeeded: 0 });
        }
        if let State::HalfOpen { running, succeeded } = &mut self.state {
            if *running + *succeeded >= self.policy.trials {
                // How long a trial takes nobody knows; asking again costs little.
                return Err(self.policy.open_ms.min(1_000));
            }
            *running += 1;
        }
        Ok(Leave { epoch: self.epoch })
    }

    /// How it ended.
    pub(crate) fn tell(&mut self, leave: Leave, ended: Ended, now_ms: u64) {
        if leave.epoch != self.epoch {
            return;
        }
        let open = State::Open { until_ms: now_ms.saturating_add(self.policy.open_ms) };
        match (&mut self.state, ended) {
            (State::Closed { failures }, Ended::Well) => *failures = 0,
            (State::Closed { failures }, Ended::Badly) => {
                *failures += 1;
                if *failures >= self.policy.failures {
                    self.becomes(open);
                }
            }
            (State::HalfOpen { .. }, Ended::Badly) => self.becomes(open),
            (State::HalfOpen { running, .. }, Ended::Unused) => *running -= 1,
            (State::HalfOpen { running, succeeded }, Ended::Well) => {
                *running -= 1;
                *succeeded += 1;
                if *succeeded >= self.policy.trials {
                    self.becomes(State::Closed { failures: 0 });
                }
            }
            (State::Closed { .. }, Ended::Unused) | (State::Open { .. }, _) => {}
        }
    }

    fn becomes(&mut self, state: State) {
        self.state = state;
        self.epoch += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const POLICY: BreakerPolicy = BreakerPolicy { failures: 3, open_ms: 1_000, trials: 2 };

    fn ended(breaker: &mut Breaker, ended: Ended, now_ms: u64) {
        let leave = breaker.ask(now_ms).unwrap();
        breaker.tell(leave, ended, now_ms);
    }

    #[test]
    fn it_opens_waits_tries_and_closes() {
        let mut breaker = Breaker::new(POLICY);
        ended(&mut breaker, Ended::Badly, 0);
        ended(&mut breaker, Ended::Badly, 0);
        ended(&mut breaker, Ended::Well, 0);
        ended(&mut breaker, Ended::Badly, 0);
        ended(&mut breaker, Ended::Badly, 0);
        assert!(breaker.is_closed(), "a success in between starts the count again");
        ended(&mut breaker, Ended::Badly, 5);
        assert_eq!(breaker.ask(5), Err(1_000));
        assert_eq!(breaker.ask(1_004), Err(1));
        let (one, two) = (breaker.ask(1_005).unwrap(), breaker.ask(1_005).unwrap());
        assert_eq!(breaker.ask(1_005), Err(1_000), "two trials, no more");
        breaker.tell(one, Ended::Unused, 1_006);
        let three = breaker.ask(1_006).unwrap();
        breaker.tell(two, Ended::Well, 1_007);
        assert!(!breaker.is_closed());
        breaker.tell(three, Ended::Well, 1_008);
        assert!(breaker.is_closed());
    }

    #[test]
    fn a_failed_trial_opens_it_again_and_late_answers_change_nothing() {
        let mut breaker = Breaker::new(POLICY);
        let late = breaker.ask(0).unwrap();
        for _ in 0..3 {
            ended(&mut breaker, Ended::Badly, 0);
        }
        let trial = breaker.ask(1_000).unwrap();
        breaker.tell(late, Ended::Well, 1_000);
        assert!(!breaker.is_closed());
        breaker.tell(trial, Ended::Badly, 1_500);
        assert_eq!(breaker.ask(2_499), Err(1));
        assert!(breaker.ask(2_500).is_ok());
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Ask,
        /// Ends the running request at this place, counted round.
        Tell(usize, Ended),
        Pass(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let ended = prop_oneof![Just(Ended::Well), Just(Ended::Badly), Just(Ended::Unused)];
        let step = prop_oneof![
            4 => Just(Step::Ask),
            4 => (0_usize..8, ended).prop_map(|(at, ended)| Step::Tell(at, ended)),
            1 => (1_u64..800).prop_map(Step::Pass),
        ];
        prop::collection::vec(step, 0..300)
    }

    proptest! {
        #[test]
        fn its_promises_hold_whatever_happens(
            failures in 1_u32..5,
            trials in 1_u32..4,
            steps in steps(),
        ) {
            let policy = BreakerPolicy { failures, open_ms: 1_000, trials };
            let mut breaker = Breaker::new(policy);
            let (mut now_ms, mut running) = (0_u64, Vec::new());
            // What an onlooker knows: failures in a row that counted, and when it last opened.
            let (mut in_a_row, mut opened_at) = (0_u32, None::<u64>);
            for step in steps {
                let closed_before = breaker.is_closed();
                match step {
                    Step::Pass(ms) => now_ms += ms,
                    Step::Ask => match breaker.ask(now_ms) {
                        Ok(leave) => {
                            if let Some(opened_at) = opened_at {
                                prop_assert!(now_ms >= opened_at + policy.open_ms);
                            }
                            running.push(leave);
                            let now = running.iter().filter(|l| l.epoch == breaker.epoch).count();
                            prop_assert!(breaker.is_closed() || now <= trials as usize);
                        }
                        Err(wait_ms) => {
                            prop_assert!(!breaker.is_closed(), "closed, it refuses nobody");
                            prop_assert!((1..=policy.open_ms).contains(&wait_ms));
                        }
                    },
                    Step::Tell(_, _) if running.is_empty() => {}
                    Step::Tell(at, ended) => {
                        let leave = running.remove(at % running.len());
                        let counts = leave.epoch == breaker.epoch;
                        breaker.tell(leave, ended, now_ms);
                        in_a_row = match (counts && closed_before, ended) {
                            (true, Ended::Badly) => in_a_row + 1,
                            (true, Ended::Well) => 0,
                            _ => in_a_row,
                        };
                        if counts && ended == Ended::Badly && !breaker.is_closed() {
                            prop_assert!(!closed_before || in_a_row == failures);
                            (opened_at, in_a_row) = (Some(now_ms), 0);
                        }
                        if breaker.is_closed() {
                            opened_at = None;
                            prop_assert!(in_a_row < failures);
                        }
                    }
                }
            }
            // From anywhere: wait, succeed, and it is closed.
            for leave in running {
                breaker.tell(leave, Ended::Unused, now_ms);
            }
            for _ in 0..trials {
                now_ms += policy.open_ms;
                if let Ok(leave) = breaker.ask(now_ms) {
                    breaker.tell(leave, Ended::Well, now_ms);
                }
            }
            prop_assert!(breaker.is_closed());
        }
    }
}
