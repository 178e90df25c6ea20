//! One operation under way: a real decision of the core, driven step by step.
//!
//! Nothing is decided here. The op asks `decide`, hands batches and looks to the simulated network
//! and learns what comes back, as the engine does against a real store.

use std::sync::Arc;

use onceward_core::audit::Trace;
use onceward_core::batch::{Answer, Applied, Batch};
use onceward_core::decide::{
    self, Claim, Completion, Enqueue, Facts, Finish, Granted, Look, NewJob, Once, Permit,
    Resolution, Resolved, Retry, Step, Swept, Verdict,
};
use onceward_core::drive::{Drive, End, Heard, Move};
use onceward_core::guard::Rule;
use onceward_core::key::Key;
use onceward_core::stamp::Token;

/// What is asked for.
#[derive(Debug)]
pub(super) enum Ask {
    Claim(Box<Claim>),
    Once(Box<(Claim, Completion)>),
    Take(Key, Arc<str>),
    Renew(Permit),
    Complete(Permit, Box<Completion>),
    Fail(Permit, Retry),
    Abandon(Permit),
    Release(Permit),
    Enqueue(Box<NewJob>),
    Sweep(Key),
    Resolve(Key, Resolution),
}

/// The drive, by what its batches mean.
#[derive(Debug)]
enum Under {
    Grant(Drive<Granted>),
    Once(Drive<Once>),
    Finish(Drive<Finish>),
    Made(Drive<Enqueue>),
    Resolved(Drive<Resolved>),
    Swept(Drive<Swept>),
}

/// What an applied batch does, in the auditor's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Act {
    Grant,
    MarkUnknown,
    Bury,
    Once,
    Renew,
    Complete,
    Fail,
    Abandon,
    Release,
    Enqueue,
    Expire,
    Forget,
    Rerun,
    RerunForced,
    DoneByHand,
    DeadByHand,
    Erase,
}

/// What the auditor has to know about an op; told by the one who asks, not read off the batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tag {
    pub(super) key: usize,
    /// The worker's life that asks.
    pub(super) uid: u32,
    /// The permit's fence, for what its holder does.
    pub(super) fence: u64,
    /// Which payload.
    pub(super) variant: usize,
    /// Which outcome.
    pub(super) outcome: usize,
    /// The order that was meant.
    pub(super) guard: Option<(usize, Rule)>,
    /// Whether an effect is in the batch.
    pub(super) in_transaction: bool,
}

/// What to do next.
pub(super) enum Next {
    Look(Vec<Look>),
    Commit(Arc<Batch>, Act),
    End(Ended),
}

/// How an op ended.
#[derive(Debug)]
pub(super) enum Ended {
    Verdict(Verdict),
    Ran,
    Finish(Finish),
    Made(Enqueue),
    Resolved(Resolved),
    Swept(Swept),
    /// The store did nothing.
    NotApplied,
    /// Nobody knows.
    Unknown,
    /// Others went ahead too many times.
    GaveUp,
}

/// What an op waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// Nothing: it can decide.
    Ready,
    /// What it looked up.
    Seen,
    /// The answer to its batch.
    Answer,
}

/// An operation under way.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) ask: Ask,
    pub(super) tag: Tag,
    pub(super) wait: Wait,
    /// Tells this message exchange from earlier ones.
    pub(super) exchange: u32,
    /// An answer was lost: a later "not applied" speaks only of the later try.
    pub(super) lost: bool,
    /// The store's true instant of the latest look.
    pub(super) seen_at: u64,
    /// When the batch or look under way was sent first, and when last.
    pub(super) sent_first: u64,
    pub(super) sent_at: u64,
    pub(super) act: Option<Act>,
    pub(super) token: Token,
    under: Under,
    recognised: Option<(Granted, Applied)>,
}

impl Op {
    pub(super) fn new(ask: Ask, tag: Tag) -> Self {
        let under = match &ask {
            Ask::Claim(_) | Ask::Take(..) => Under::Grant(Drive::default()),
            Ask::Once(_) => Under::Once(Drive::default()),
            Ask::Renew(_)
            | Ask::Complete(..)
            | Ask::Fail(..)
            | Ask::Abandon(_)
            | Ask::Release(_) => Under::Finish(Drive::default()),
            Ask::Enqueue(_) => Under::Made(Drive::default()),
            Ask::Sweep(_) => Under::Swept(Drive::default()),
            Ask::Resolve(..) => Under::Resolved(Drive::default()),
        };
        Self {
            ask,
            tag,
            wait: Wait::Ready,
            exchange: 0,
            lost: false,
            seen_at: 0,
            sent_first: 0,
            sent_at: 0,
            act: None,
            token: Token::default(),
            under,
            recognised: None,
        }
    }

    /// A new op in a box: ops change hands at every step.
    pub(super) fn boxed(ask: Ask, tag: Tag) -> Box<Self> {
        Box::new(Self::new(ask, tag))
    }

    /// What is known so far.
    pub(super) fn facts(&mut self) -> &mut Facts {
        match &mut self.under {
            Under::Grant(drive) => &mut drive.facts,
            Under::Once(drive) => &mut drive.facts,
            Under::Finish(drive) => &mut drive.facts,
            Under::Made(drive) => &mut drive.facts,
            Under::Resolved(drive) => &mut drive.facts,
            Under::Swept(drive) => &mut drive.facts,
        }
    }

    /// Whether it hands in an outcome.
    pub(super) fn is_complete(&self) -> bool {
        matches!(self.ask, Ask::Complete(..))
    }

    /// Asks the core.
    pub(super) fn decide(&mut self, token: Token) -> Next {
        let key = match &self.ask {
            Ask::Claim(claim) => claim.key.clone(),
            Ask::Take(key, _) => key.clone(),
            _ => return self.decide_rest(token),
        };
        if self.recognised.is_some() {
            return self.known(&key).unwrap_or_else(|| Next::Look(vec![Look::Record(key)]));
        }
        let Under::Grant(drive) = &mut self.under else { return Next::End(Ended::GaveUp) };
        let step = match &self.ask {
            Ask::Claim(claim) => decide::claim(claim, token, &drive.facts),
            Ask::Take(key, owner) => decide::take(key, owner, None, token, &drive.facts),
            _ => return Next::End(Ended::GaveUp),
        };
        let act = |granted: &Granted| match granted {
            Granted::Run { .. } => Act::Grant,
            Granted::Unknown(_) => Act::MarkUnknown,
            Granted::Dead(_) => Act::Bury,
        };
        advance(drive, step, act, Ended::Verdict)
    }

    /// The verdict of a recognised grant, once its record was looked up again.
    fn known(&mut self, key: &Key) -> Option<Next> {
        let Under::Grant(drive) = &mut self.under else { return None };
        let there = drive.facts.record(key)?;
        let (granted, applied) = self.recognised.take()?;
        let record = there.map(|stored| &stored.record);
        Some(Next::End(Ended::Verdict(granted.recognised(applied, record))))
    }

    fn decide_rest(&mut self, token: Token) -> Next {
        match (&self.ask, &mut self.under) {
            (Ask::Once(once), Under::Once(drive)) => {
                let step = decide::run_once(&once.0, &once.1, token, &drive.facts);
                let act = |once: &Once| match once {
                    Once::Ran { .. } => Act::Once,
                    Once::Unknown(_) => Act::MarkUnknown,
                };
                advance(drive, step, act, Ended::Verdict)
            }
            (Ask::Enqueue(job), Under::Made(drive)) => {
                let step = decide::enqueue(job, token, &drive.facts);
                advance(drive, step, |_| Act::Enqueue, Ended::Made)
            }
            (Ask::Sweep(key), Under::Swept(drive)) => {
                let step = decide::sweep(key, token, &drive.facts);
                let act = |swept: &Swept| match swept {
                    Swept::Expired => Act::Expire,
                    Swept::Forgotten | Swept::Left => Act::Forget,
                    Swept::MarkedUnknown => Act::MarkUnknown,
                };
                advance(drive, step, act, Ended::Swept)
            }
            (Ask::Resolve(key, how), Under::Resolved(drive)) => {
                let step = decide::resolve(key, how, &Trace::default(), token, &drive.facts);
                let act = match how {
                    Resolution::Rerun { force: false } => Act::Rerun,
                    Resolution::Rerun { force: true } => Act::RerunForced,
                    Resolution::Done { .. } => Act::DoneByHand,
                    Resolution::Dead { .. } => Act::DeadByHand,
                    Resolution::Erase | Resolution::Discard => Act::Erase,
                };
                advance(drive, step, |_| act, Ended::Resolved)
            }
            (ask, Under::Finish(drive)) => {
                let Some((step, act)) = finish(ask, token, &drive.facts) else {
                    return Next::End(Ended::GaveUp);
                };
                advance(drive, step, |_| act, Ended::Finish)
            }
            _ => Next::End(Ended::GaveUp),
        }
    }

    /// Hears the store's answer: how the op ended, or none when it has to decide again.
    pub(super) fn hear(&mut self, answer: Answer) -> Option<Ended> {
        self.wait = Wait::Ready;
        match &mut self.under {
            Under::Grant(drive) => match drive.answered(answer) {
                Heard::Committed { meaning, applied, .. } if applied.again => {
                    // As in the engine: look again, because the lease began earlier.
                    drive.facts = Facts::default();
                    self.recognised = Some((meaning, applied));
                    None
                }
                Heard::Committed { meaning, batch, applied } => {
                    let verdict = meaning.verdict(batch.token, applied);
                    Some(verdict.map_or(Ended::GaveUp, Ended::Verdict))
                }
                Heard::DecideAgain | Heard::SendAgain(_) => None,
            },
            Under::Once(drive) => heard(drive, answer, |once| match once {
                Once::Ran { .. } => Ended::Ran,
                Once::Unknown(record) => Ended::Verdict(Verdict::Unknown(record)),
            }),
            Under::Finish(drive) => heard(drive, answer, Ended::Finish),
            Under::Made(drive) => heard(drive, answer, Ended::Made),
            Under::Resolved(drive) => heard(drive, answer, Ended::Resolved),
            Under::Swept(drive) => heard(drive, answer, Ended::Swept),
        }
    }

    /// The answer was lost: what to send again.
    pub(super) fn lost(&self) -> Option<Arc<Batch>> {
        match &self.under {
            Under::Grant(drive) => drive.lost(),
            Under::Once(drive) => drive.lost(),
            Under::Finish(drive) => drive.lost(),
            Under::Made(drive) => drive.lost(),
            Under::Resolved(drive) => drive.lost(),
            Under::Swept(drive) => drive.lost(),
        }
    }
}

/// What a permit's holder asks for.
fn finish(ask: &Ask, token: Token, facts: &Facts) -> Option<(Step<Finish, Finish>, Act)> {
    let (step, act) = match ask {
        Ask::Renew(permit) => (decide::renew(permit, None, token, facts), Act::Renew),
        Ask::Complete(permit, completion) => {
            (decide::complete(permit, completion, token, facts), Act::Complete)
        }
        Ask::Fail(permit, retry) => {
            (decide::fail(permit, "it broke", *retry, token, facts), Act::Fail)
        }
        Ask::Abandon(permit) => (decide::abandon(permit, "cut off", token, facts), Act::Abandon),
        Ask::Release(permit) => (decide::release(permit, token, facts), Act::Release),
        _ => return None,
    };
    Some((step, act))
}

fn advance<T, A>(
    drive: &mut Drive<T>,
    step: Step<T, A>,
    act: impl FnOnce(&T) -> Act,
    answer: impl FnOnce(A) -> Ended,
) -> Next {
    let act = match &step {
        Step::Commit(_, meaning) => Some(act(meaning)),
        Step::Look(_) | Step::Answer(_) => None,
    };
    match (drive.next(step), act) {
        (Move::Look(looks), _) => Next::Look(looks),
        (Move::Commit(batch), Some(act)) => Next::Commit(batch, act),
        (Move::End(End::Answer(end)), _) => Next::End(answer(end)),
        _ => Next::End(Ended::GaveUp),
    }
}

fn heard<T>(drive: &mut Drive<T>, answer: Answer, ended: impl FnOnce(T) -> Ended) -> Option<Ended> {
    match drive.answered(answer) {
        Heard::Committed { meaning, .. } => Some(ended(meaning)),
        Heard::DecideAgain | Heard::SendAgain(_) => None,
    }
}
