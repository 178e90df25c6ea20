//! Every state × every question, as tables: the whole state machine on two pages.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

use onceward_core::audit::Trace;
use onceward_core::batch::{Condition, Write};
use onceward_core::decide::{
    self, Claim, Facts, Finish, Permit, Resolution, Resolved, Retry, Step, Swept, Verdict,
};
use onceward_core::fingerprint::{Fingerprint, fingerprint_bytes};
use onceward_core::key::{Key, Kind};
use onceward_core::record::{FenceWrite, OnAbandoned, Record, State, Stored, Terms, Time};
use onceward_core::stamp::{At, Fence, Rev, Token};

const NOW: At = At(10_000);

fn print(text: &str) -> Fingerprint {
    fingerprint_bytes(text.as_bytes())
}

/// A record in a state whose lease, retry time or retention ends at `end`.
fn record(kind: Kind, state: State, end: u64) -> Record {
    let claim = Claim::new(Key::new(kind, "acme", "scope", "id").unwrap(), print("p"));
    let Step::Commit(batch, _) = decide::claim(&claim, Token(1), &Facts::default()) else {
        panic!("a first claim commits")
    };
    let Write::Put(draft) = &batch.writes[0] else { panic!("a claim puts a record") };
    let mut record = draft.resolve(Token(1), At(0), 7);
    let held = matches!(state, State::Running | State::Unknown);
    record.state = state;
    record.fence = held.then_some(Fence(7));
    record.due_at = None;
    record.sweep_at = Some(At(end));
    match state {
        State::Pending | State::Failed | State::Running => record.due_at = Some(At(end)),
        State::Done => {
            record.expires_at = Some(At(end));
            record.outcome = Some(print("outcome"));
        }
        State::Dead | State::Unknown | State::Expired => {}
    }
    record
}

fn facts(record: &Record) -> Facts {
    let mut facts = Facts::at(NOW);
    let outcome = record.outcome.map(|_| b"outcome"[..].into());
    facts.learn_record(&record.key, Some(Stored { record: record.clone(), outcome }));
    facts
}

/// `run` (a grant over this rev), or the verdict's word.
fn ask(record: &Record, payload: &str) -> String {
    let request = Claim::new(record.key.clone(), print(payload));
    match decide::claim(&request, Token(2), &facts(record)) {
        Step::Answer(verdict) => verdict.as_str().into(),
        Step::Look(_) => "look".into(),
        Step::Commit(batch, meaning) => {
            assert_eq!(batch.conditions[0], Condition::RevIs(record.key.clone(), Rev(7)));
            match meaning {
                decide::Granted::Run { draft, was_expired } => {
                    assert_eq!(draft.fence, FenceWrite::Grant);
                    if was_expired {
                        "run anew".into()
                    } else {
                        format!("run {}", draft.record.attempt)
                    }
                }
                decide::Granted::Unknown(_) => "mark unknown".into(),
                decide::Granted::Dead(_) => "bury".into(),
            }
        }
    }
}

#[test]
fn claims_by_state_payload_and_time() {
    let (past, future) = (9_999, 20_000);
    let table = [
        // state, its end, same payload, other payload
        (State::Pending, past, "run 2", "mismatch"),
        (State::Pending, future, "busy", "mismatch"),
        (State::Running, past, "run 2", "mismatch"),
        (State::Running, 10_000, "run 2", "mismatch"),
        (State::Running, future, "busy", "mismatch"),
        (State::Done, future, "replay", "mismatch"),
        (State::Done, past, "run anew", "run anew"),
        (State::Failed, past, "run 2", "mismatch"),
        (State::Failed, future, "busy", "mismatch"),
        (State::Dead, past, "dead", "mismatch"),
        (State::Unknown, past, "unknown", "mismatch"),
        (State::Expired, future, "run anew", "run anew"),
    ];
    for (state, end, same, other) in table {
        let record = record(Kind::Request, state, end);
        assert_eq!(ask(&record, "p"), same, "{state:?} until {end}, same payload");
        assert_eq!(ask(&record, "q"), other, "{state:?} until {end}, other payload");
    }
}

#[test]
fn an_abandoned_lease_follows_its_terms() {
    let mut hold = record(Kind::Request, State::Running, 9_999);
    hold.terms.on_abandoned = OnAbandoned::Hold;
    assert_eq!(ask(&hold, "p"), "mark unknown");
    let mut spent = record(Kind::Job, State::Running, 9_999);
    spent.terms.max_attempts = 1;
    assert_eq!(ask(&spent, "p"), "bury");
}

#[test]
fn a_first_claim_is_one_optimistic_insert_without_a_look() {
    let key = Key::new(Kind::Request, "acme", "scope", "id").unwrap();
    let claim = Claim::new(key.clone(), print("p"));
    match decide::claim(&claim, Token(1), &Facts::default()) {
        Step::Commit(batch, _) => {
            assert_eq!(batch.conditions, [Condition::Absent(key)]);
            assert_eq!(batch.writes.len(), 1);
        }
        other => panic!("{other:?}"),
    }
}

/// The state that a holder's step leaves, or what it answers.
fn after(step: Step<Finish, Finish>) -> String {
    match step {
        Step::Answer(finish) => format!("{finish:?}"),
        Step::Look(_) => "look".into(),
        Step::Commit(batch, _) => {
            assert!(matches!(batch.conditions[0], Condition::FenceIs(_, Fence(7))));
            match &batch.writes[0] {
                Write::Put(draft) => {
                    let held = draft.fence == FenceWrite::Keep;
                    format!("{}{}", draft.record.state.as_str(), if held { " held" } else { "" })
                }
                Write::Delete(_) => "gone".into(),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn what_a_holder_does_leaves_the_record_so() {
    let permit = |kind, attempt, on_abandoned| {
        let mut record = record(kind, State::Running, 20_000);
        record.attempt = attempt;
        record.terms.on_abandoned = on_abandoned;
        Permit::of(record).unwrap()
    };
    let none = Facts::default();
    let first = permit(Kind::Request, 1, OnAbandoned::Rerun);
    let second = permit(Kind::Request, 2, OnAbandoned::Rerun);
    let job = permit(Kind::Job, 2, OnAbandoned::Rerun);
    let hold = permit(Kind::Request, 1, OnAbandoned::Hold);
    let token = Token(3);
    let retry = Retry::In(5);
    assert_eq!(after(decide::renew(&first, None, token, &none)), "running held");
    assert_eq!(after(decide::release(&first, token, &none)), "gone");
    assert_eq!(after(decide::release(&second, token, &none)), "failed");
    assert_eq!(after(decide::release(&job, token, &none)), "pending");
    assert_eq!(after(decide::fail(&first, "no", retry, token, &none)), "failed");
    assert_eq!(after(decide::fail(&first, "no", Retry::Never, token, &none)), "dead");
    assert_eq!(after(decide::abandon(&first, "gone", token, &none)), "failed");
    assert_eq!(after(decide::abandon(&hold, "gone", token, &none)), "unknown");
    // Someone else was granted since: every step answers that the permit is lost.
    let mut theirs = (*first.record).clone();
    theirs.fence = Some(Fence(9));
    let known = facts(&theirs);
    for step in [
        decide::renew(&first, None, token, &known),
        decide::release(&first, token, &known),
        decide::fail(&first, "no", retry, token, &known),
        decide::abandon(&hold, "gone", token, &known),
    ] {
        assert_eq!(after(step), "Lost");
    }
}

#[test]
fn only_requests_are_swept_while_they_could_still_run() {
    let terms = Terms::default();
    let long = terms.retain_ms + terms.remember_ms;
    let table = [
        (Kind::Request, OnAbandoned::Rerun, Time::In(terms.lease_ms + long)),
        (Kind::Request, OnAbandoned::Hold, Time::In(terms.lease_ms)),
        (Kind::Job, OnAbandoned::Rerun, Time::Clear),
        (Kind::Event, OnAbandoned::Rerun, Time::Clear),
    ];
    for (kind, on_abandoned, expected) in table {
        let mut claim = Claim::new(Key::new(kind, "t", "s", "i").unwrap(), print("p"));
        claim.terms.on_abandoned = on_abandoned;
        let Step::Commit(batch, _) = decide::claim(&claim, Token(1), &Facts::default()) else {
            panic!("a first claim commits")
        };
        let Write::Put(draft) = &batch.writes[0] else { panic!("a claim puts a record") };
        assert_eq!(draft.sweep, expected, "{kind:?} {on_abandoned:?}");
    }
}

#[test]
fn the_sweep_by_state_and_time() {
    let (past, future) = (9_999, 20_000);
    let table = [
        (State::Pending, past, Swept::Left),
        (State::Running, past, Swept::Forgotten),
        (State::Running, future, Swept::Left),
        (State::Done, past, Swept::Expired),
        (State::Done, future, Swept::Left),
        (State::Failed, past, Swept::Forgotten),
        (State::Failed, future, Swept::Left),
        (State::Dead, past, Swept::Left),
        (State::Unknown, past, Swept::Left),
        (State::Expired, past, Swept::Forgotten),
        (State::Expired, future, Swept::Left),
    ];
    for (state, end, expected) in table {
        let record = record(Kind::Request, state, end);
        let swept = match decide::sweep(&record.key, Token(2), &facts(&record)) {
            Step::Commit(batch, swept) => {
                let rev = Condition::RevIs(record.key.clone(), Rev(7));
                assert_eq!(batch.conditions, [rev], "what is decided from facts needs the rev");
                swept
            }
            Step::Answer(swept) => swept,
            Step::Look(looks) => panic!("{looks:?}"),
        };
        assert_eq!(swept, expected, "{state:?} until {end}");
    }
}

#[test]
fn resolutions_by_state() {
    let rerun = Resolution::Rerun { force: false };
    let done = Resolution::Done { outcome: (b"o"[..].into(), print("o")) };
    let dead = Resolution::Dead { reason: "because".into() };
    let (erase, discard) = (Resolution::Erase, Resolution::Discard);
    let (past, future) = (9_999, 20_000);
    // state, its end, rerun, done, dead, erase, discard
    let table = [
        (State::Pending, past, [false, true, true, true, false]),
        (State::Running, future, [false, false, false, false, false]),
        (State::Running, past, [true, true, true, true, false]),
        (State::Done, future, [false, false, false, true, false]),
        (State::Failed, past, [true, true, true, true, false]),
        (State::Dead, past, [true, true, false, true, true]),
        (State::Unknown, past, [true, true, true, true, false]),
        (State::Expired, future, [false, false, false, true, false]),
    ];
    for (state, end, allowed) in table {
        let record = record(Kind::Request, state, end);
        let resolutions = [&rerun, &done, &dead, &erase, &discard];
        for (resolution, allowed) in resolutions.into_iter().zip(allowed) {
            let trace = Trace::default();
            let step = decide::resolve(&record.key, resolution, &trace, Token(2), &facts(&record));
            let is_allowed = match step {
                Step::Commit(batch, Resolved::Ok) => {
                    for write in &batch.writes {
                        if let Write::Put(draft) = write {
                            assert_ne!(draft.fence, FenceWrite::Keep, "it ends every permit");
                        }
                    }
                    true
                }
                Step::Answer(Resolved::NotNow(_)) => false,
                other => panic!("{other:?}"),
            };
            assert_eq!(is_allowed, allowed, "{state:?} until {end}: {resolution:?}");
        }
    }
}

#[test]
fn a_store_without_a_clock_judges_a_lease_by_an_unchanged_rev() {
    let running = record(Kind::Request, State::Running, 0);
    let request = Claim::new(running.key.clone(), print("p"));
    for (unchanged_ms, lapsed) in [(0, false), (29_999, false), (30_000, true)] {
        let mut known = facts(&running);
        known.clock = decide::Clock::Watched { unchanged_ms };
        match decide::claim(&request, Token(2), &known) {
            Step::Answer(Verdict::Busy { .. }) => assert!(!lapsed),
            Step::Commit(..) => assert!(lapsed),
            other => panic!("{other:?}"),
        }
    }
}
