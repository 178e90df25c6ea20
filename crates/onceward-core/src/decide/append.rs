//! Appends: may these events get the next numbers of their aggregate?
//!
//! One batch reserves the numbers (the aggregate's mark), takes the events' ids (a record each,
//! done from the start and kept for ever) and leaves the intent: a job of the event store's own
//! queue that holds the events' bytes until they lie in a segment. What is reserved is never given
//! back, so no number is lost. Where the events lie is not decided here.

use super::{Facts, Look, Step, blank};
use crate::Bytes;
use crate::audit::Trace;
use crate::batch::{Batch, Condition, Write};
use crate::decide::Claim;
use crate::fingerprint::Fingerprint;
use crate::guard::{Guard, Rule};
use crate::key::{Key, Kind, Subject};
use crate::limits::{LimitError, MAX_BATCH_WRITES, MAX_POSITION};
use crate::record::{Body, Draft, FenceWrite, Record, State, Terms, Time};
use crate::stamp::Token;

/// Events of one append: each is a write, and so are the intent and the mark.
pub const MAX_APPEND_EVENTS: usize = MAX_BATCH_WRITES - 2;

/// Events to be appended to one aggregate, all or none.
#[derive(Debug, Clone)]
pub struct Append {
    /// The mark that counts the aggregate's events.
    pub aggregate: Subject,
    /// The number that the aggregate is expected to be at; none: wherever it is.
    pub expected: Option<u64>,
    /// Their keys and fingerprints, in their order.
    pub events: Vec<(Key, Fingerprint)>,
    /// The intent's key: a job of the event store's queue.
    pub intent: Key,
    /// The events' bytes, as the intent keeps them.
    pub payload: Bytes,
    /// Correlation ids and actor.
    pub trace: Trace,
}

/// The answer to an append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reservation {
    /// The numbers are theirs: the first of them.
    Reserved(u64),
    /// All are there with these payloads, in one run: the first of their numbers.
    There(u64),
    /// The event at this index has an id that was used with another payload.
    Mismatch(usize, Box<Record>),
    /// The aggregate is not where it was expected to be.
    Expected {
        /// Where it is.
        current: u64,
    },
    /// Some are there and some are not, or they are there but not as one run.
    Mixed {
        /// Numbers of those that are there, by their index.
        there: Vec<(usize, u64)>,
    },
}

impl Append {
    /// Checks every bound.
    ///
    /// # Errors
    /// The first that is broken.
    pub fn validate(&self) -> Result<(), LimitError> {
        if self.events.is_empty() || self.events.len() > MAX_APPEND_EVENTS {
            let bound = format!("1 to {MAX_APPEND_EVENTS}");
            return Err(LimitError::new("events of an append", self.events.len(), bound));
        }
        let tenant = self.aggregate.tenant_column();
        let ours = |key: &Key| key.tenant_column() == tenant;
        if !ours(&self.intent) || !self.events.iter().all(|(key, _)| ours(key)) {
            return Err(LimitError::new("event", "another tenant's", "of the aggregate's tenant"));
        }
        if self.events.iter().any(|(key, _)| key.kind() != Kind::Append) {
            return Err(LimitError::new("kind", "another", "append"));
        }
        for (at, (key, _)) in self.events.iter().enumerate() {
            if self.events[..at].iter().any(|(earlier, _)| earlier == key) {
                return Err(LimitError::new("event_id", "used twice", "unique in its batch"));
            }
        }
        self.trace.validate()
    }
}

/// The number of an event, as its record tells.
#[must_use]
pub fn append_number(record: &Record) -> Option<u64> {
    record.guard.as_ref().map(|guard| guard.rule.moves_to())
}

/// Decides whether the events get the next numbers.
#[must_use]
pub fn append(request: &Append, token: Token, facts: &Facts) -> Step<Reservation, Reservation> {
    let looked = |key: &Key| facts.record(key);
    let known = request.events.iter().any(|(key, _)| looked(key).flatten().is_some());
    if known {
        let missing = request.events.iter().filter(|(key, _)| looked(key).is_none());
        let looks: Vec<_> = missing.map(|(key, _)| Look::Record(key.clone())).collect();
        if !looks.is_empty() {
            return Step::Look(looks);
        }
        return Step::Answer(judge_known(request, facts));
    }
    let at = facts.position(&request.aggregate);
    let from = match (request.expected, at) {
        (Some(expected), Some(current)) if expected != current => {
            return Step::Answer(Reservation::Expected { current });
        }
        (Some(expected), _) => expected,
        (None, Some(current)) => current,
        (None, None) => return Step::Look(vec![Look::Mark(request.aggregate.clone())]),
    };
    let count = request.events.len() as u64;
    if from > MAX_POSITION - count {
        // No aggregate ever gets there: it can't be what it is at. Events that are known are
        // answered all the same.
        return match at {
            Some(current) => Step::Answer(Reservation::Expected { current }),
            None => {
                let records = request.events.iter().map(|(key, _)| Look::Record(key.clone()));
                let mark = Look::Mark(request.aggregate.clone());
                Step::Look(records.chain([mark]).collect())
            }
        };
    }
    Step::Commit(batch(request, from, token), Reservation::Reserved(from + 1))
}

/// Ids that were used before: the same events again, or something else.
fn judge_known(request: &Append, facts: &Facts) -> Reservation {
    let mut there = Vec::new();
    for (at, (key, fingerprint)) in request.events.iter().enumerate() {
        let Some(Some(stored)) = facts.record(key) else { continue };
        let record = &stored.record;
        let elsewhere = record.guard.as_ref().map(|guard| &guard.subject);
        if record.fingerprint != *fingerprint || elsewhere != Some(&request.aggregate) {
            return Reservation::Mismatch(at, Box::new(record.clone()));
        }
        there.push((at, append_number(record).unwrap_or_default()));
    }
    let first = there.first().map_or(0, |(_, number)| *number);
    let run = there.len() == request.events.len()
        && there.iter().zip(first..).all(|((_, number), wanted)| *number == wanted);
    if run { Reservation::There(first) } else { Reservation::Mixed { there } }
}

fn batch(request: &Append, from: u64, token: Token) -> Batch {
    let mut batch = Batch::new(token);
    let terms = Terms::default();
    for ((key, fingerprint), before) in request.events.iter().zip(from..) {
        batch.conditions.push(Condition::Absent(key.clone()));
        let mut claim = Claim::new(key.clone(), *fingerprint);
        claim.terms = terms;
        claim.trace = request.trace.clone();
        claim.guard = Some(guard(request, before));
        let record = blank(&claim, State::Done);
        batch.writes.push(Write::Put(Box::new(forever(record, Time::Clear, Body::Keep))));
    }
    let Some((_, fingerprint)) = request.events.first() else { return batch };
    let mut claim = Claim::new(request.intent.clone(), *fingerprint);
    claim.terms = terms;
    claim.trace = request.trace.clone();
    claim.guard = Some(guard(request, from));
    claim.payload = Some(request.payload.clone());
    let record = blank(&claim, State::Pending);
    let payload = Body::Set(request.payload.clone());
    batch.writes.push(Write::Put(Box::new(forever(record, Time::In(0), payload))));
    batch.conditions.push(Condition::PositionIs(request.aggregate.clone(), from));
    batch.writes.push(Write::Mark {
        subject: request.aggregate.clone(),
        position: from + request.events.len() as u64,
        value: Body::Keep,
    });
    batch
}

fn guard(request: &Append, expected: u64) -> Guard {
    Guard { subject: request.aggregate.clone(), rule: Rule::Exactly { expected } }
}

/// A record that no sweep ever looks at.
fn forever(record: Record, due: Time, payload: Body) -> Draft {
    Draft {
        record,
        fence: FenceWrite::End,
        fresh: true,
        due,
        expires: Time::Clear,
        sweep: Time::Clear,
        outcome: Body::Keep,
        payload,
    }
}

/// An event that lies in a segment.
#[derive(Debug, Clone)]
pub struct Packed {
    /// The mark that tells where it lies.
    pub index: Subject,
    /// Where it lies.
    pub place: Bytes,
    /// The intent that it was the first event of.
    pub intent: Option<Key>,
    /// What its append wrote, for a store that may have lost it.
    pub reserved: Option<Reserved>,
}

/// What an append wrote of an event.
#[derive(Debug, Clone)]
pub struct Reserved {
    /// Its key.
    pub key: Key,
    /// Of its payload.
    pub fingerprint: Fingerprint,
    /// The mark that counts its aggregate's events.
    pub aggregate: Subject,
    /// Its number there.
    pub number: u64,
    /// Correlation ids.
    pub trace: Trace,
}

/// Writes that one packed event needs at most: see [`settle`].
const WRITES_PER_EVENT: usize = 2;
const WRITES_PER_EVENT_WHOLE: usize = 4;

/// Events that [`settle`] takes at most; fewer when they bring what their appends wrote.
#[must_use]
pub const fn settle_max(whole: bool) -> usize {
    MAX_BATCH_WRITES / if whole { WRITES_PER_EVENT_WHOLE } else { WRITES_PER_EVENT }
}

/// The batch that notes where events of one tenant lie and drops their intents. It has no
/// condition: it says what the segment says, whoever says it and how often.
#[must_use]
pub fn settle(events: &[Packed], token: Token) -> Batch {
    let mut batch = Batch::new(token);
    for (at, event) in events.iter().enumerate() {
        batch.writes.push(Write::Mark {
            subject: event.index.clone(),
            position: 1,
            value: Body::Set(event.place.clone()),
        });
        if let Some(intent) = &event.intent {
            batch.writes.push(Write::Delete(intent.clone()));
        }
        let Some(reserved) = &event.reserved else { continue };
        let mut claim = Claim::new(reserved.key.clone(), reserved.fingerprint);
        claim.trace = reserved.trace.clone();
        let rule = Rule::Exactly { expected: reserved.number.saturating_sub(1) };
        claim.guard = Some(Guard { subject: reserved.aggregate.clone(), rule });
        let record = blank(&claim, State::Done);
        batch.writes.push(Write::Put(Box::new(forever(record, Time::Clear, Body::Keep))));
        let later = |other: &Packed| {
            other.reserved.as_ref().is_some_and(|other| other.aggregate == reserved.aggregate)
        };
        if !events[at + 1..].iter().any(later) {
            batch.writes.push(Write::Mark {
                subject: reserved.aggregate.clone(),
                position: reserved.number,
                value: Body::Keep,
            });
        }
    }
    batch
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Answer, Refused, There};
    use crate::fingerprint::fingerprint_bytes;
    use crate::stamp::At;

    fn request(expected: Option<u64>, ids: &[&str]) -> Append {
        let key = |id: &&str| Key::new(Kind::Append, "t", "main", id).unwrap();
        Append {
            aggregate: Subject::new("t", "main", "a").unwrap(),
            expected,
            events: ids.iter().map(|id| (key(id), fingerprint_bytes(id.as_bytes()))).collect(),
            intent: Key::new(Kind::Job, "t", "queue", ids[0]).unwrap(),
            payload: b"events".as_slice().into(),
            trace: Trace::default(),
        }
    }

    #[test]
    fn c05_the_batch_holds_only_at_the_expected_number() {
        let request = request(Some(4), &["x", "y"]);
        let Step::Commit(batch, Reservation::Reserved(5)) =
            append(&request, Token(1), &Facts::default())
        else {
            panic!("a first append writes at once")
        };
        let at = Condition::PositionIs(request.aggregate.clone(), 4);
        assert!(batch.conditions.contains(&at));
        assert_eq!(batch.conditions.len(), 3);
        let moved = batch.writes.iter().any(|write| {
            let Write::Mark { position: 6, subject, .. } = write else { return false };
            *subject == request.aggregate
        });
        assert!(moved, "the mark moves past both");
        assert!(batch.validate().is_ok());
    }

    #[test]
    fn c05_another_number_is_refused_with_the_current_one() {
        let request = request(Some(4), &["x"]);
        let mut facts = Facts::default();
        facts.learn_position(&request.aggregate, 7);
        let Step::Answer(answer) = append(&request, Token(1), &facts) else { panic!("it is 7") };
        assert_eq!(answer, Reservation::Expected { current: 7 });
    }

    #[test]
    fn c06_known_ids_win_over_a_stale_expectation() {
        let request = request(Some(0), &["x", "y"]);
        let mut facts = facts_after(&request);
        facts.learn_position(&request.aggregate, 9);
        let Step::Answer(answer) = append(&request, Token(2), &facts) else { panic!("known") };
        assert_eq!(answer, Reservation::There(1));
    }

    #[test]
    fn c06_known_ids_win_over_an_expectation_that_nothing_ever_meets() {
        let request = request(Some(u64::MAX), &["x"]);
        let Step::Look(looks) = append(&request, Token(1), &Facts::default()) else {
            panic!("it can't be reserved")
        };
        let record = Look::Record(request.events[0].0.clone());
        assert!(looks.contains(&record), "the event may be known: {looks:?}");
    }

    #[test]
    fn c06_a_known_id_with_another_payload_or_aggregate_is_a_mismatch() {
        let mut request = request(Some(0), &["x", "y"]);
        let facts = facts_after(&request);
        request.events[1].1 = fingerprint_bytes(b"other");
        let Step::Answer(Reservation::Mismatch(1, _)) = append(&request, Token(2), &facts) else {
            panic!("y differs")
        };
    }

    #[test]
    fn c06_known_and_new_ids_do_not_mix() {
        let first = request(Some(0), &["x", "y"]);
        let mut facts = facts_after(&first);
        let more = request(Some(0), &["x", "y", "z"]);
        let Step::Look(looks) = append(&more, Token(2), &facts) else { panic!("z is not known") };
        assert_eq!(looks, [Look::Record(more.events[2].0.clone())]);
        facts.learn_record(&more.events[2].0, None);
        let Step::Answer(answer) = append(&more, Token(2), &facts) else { panic!("known") };
        assert_eq!(answer, Reservation::Mixed { there: vec![(0, 1), (1, 2)] });
        let turned = request(Some(0), &["y", "x"]);
        let Step::Answer(answer) = append(&turned, Token(2), &facts) else { panic!("known") };
        assert_eq!(answer, Reservation::Mixed { there: vec![(0, 2), (1, 1)] });
        let prefix = request(Some(0), &["x"]);
        let Step::Answer(answer) = append(&prefix, Token(2), &facts) else { panic!("known") };
        assert_eq!(answer, Reservation::There(1));
    }

    /// What is known after the request was applied.
    fn facts_after(request: &Append) -> Facts {
        let Step::Commit(batch, _) = append(request, Token(1), &Facts::default()) else {
            panic!("a first append writes at once")
        };
        let mut facts = Facts::default();
        let failed = request.events.iter().enumerate().map(|(at, (key, _))| {
            let draft = batch.writes.iter().find_map(|write| match write {
                Write::Put(draft) if draft.record.key == *key => Some(draft),
                _ => None,
            });
            let record = draft.unwrap().resolve(Token(1), At(5), 9);
            let stored = crate::record::Stored { record, outcome: None };
            (at, There::Record(Some(Box::new(stored))))
        });
        let Answer::Refused(refused) =
            Answer::Refused(Refused { now: At(5), failed: failed.collect() })
        else {
            return facts;
        };
        facts.learn(&batch, refused);
        facts
    }
}
