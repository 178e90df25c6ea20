//! The loop of every operation, without I/O: decide, look or commit, learn, decide again.
//!
//! The engine runs it against a store; the simulator and the model checker run the very same steps
//! against the oracle. What happens after a lost answer is decided here too: the same batch is sent
//! again, and its token tells whether it had been applied.

use std::sync::Arc;

use crate::batch::{Answer, Applied, Batch};
use crate::decide::{Facts, Look, Step};
use crate::zoo::{Bug, planted};

/// Refusals in a row after which an operation gives up: each means that someone else went ahead.
pub const MAX_ROUNDS: u32 = 64;

/// One operation under way.
#[derive(Debug, Clone)]
pub struct Drive<T> {
    /// What is known so far.
    pub facts: Facts,
    pending: Option<(Arc<Batch>, T)>,
    rounds: u32,
}

/// What to do next.
#[derive(Debug)]
pub enum Move<T, A> {
    /// Look these up, note them in the facts, then decide again.
    Look(Vec<Look>),
    /// Commit this and report the answer, or that it was lost.
    Commit(Arc<Batch>),
    /// The operation is over.
    End(End<T, A>),
}

/// How an operation ended.
#[derive(Debug)]
pub enum End<T, A> {
    /// The batch was applied, and this is what it meant.
    Committed {
        /// What was decided.
        meaning: T,
        /// What was committed.
        batch: Arc<Batch>,
        /// The store's stamps.
        applied: Applied,
    },
    /// There was nothing to commit.
    Answer(A),
    /// Others went ahead too many times in a row.
    GaveUp,
}

/// What an answer of the store leads to.
#[derive(Debug)]
pub enum Heard<T> {
    /// Applied: the operation is over.
    Committed {
        /// What was decided.
        meaning: T,
        /// What was committed.
        batch: Arc<Batch>,
        /// The store's stamps.
        applied: Applied,
    },
    /// Refused: the facts know more now; decide again.
    DecideAgain,
    /// A row is held by someone else's transaction: send the same batch again, later.
    SendAgain(Arc<Batch>),
}

impl<T> Default for Drive<T> {
    fn default() -> Self {
        Self { facts: Facts::default(), pending: None, rounds: 0 }
    }
}

impl<T> Drive<T> {
    /// An operation that starts from facts.
    #[must_use]
    pub fn from(facts: Facts) -> Self {
        Self { facts, pending: None, rounds: 0 }
    }

    /// Takes the next decision.
    pub fn next<A>(&mut self, step: Step<T, A>) -> Move<T, A> {
        self.rounds += 1;
        if self.rounds > MAX_ROUNDS {
            return Move::End(End::GaveUp);
        }
        match step {
            Step::Look(looks) => Move::Look(looks),
            Step::Answer(answer) => Move::End(End::Answer(answer)),
            Step::Commit(batch, meaning) => {
                let batch = Arc::new(batch);
                self.pending = Some((batch.clone(), meaning));
                Move::Commit(batch)
            }
        }
    }

    /// Hears the store's answer to the batch under way.
    pub fn answered(&mut self, answer: Answer) -> Heard<T> {
        let Some((batch, meaning)) = self.pending.take() else { return Heard::DecideAgain };
        match answer {
            Answer::Applied(applied) => Heard::Committed { meaning, batch, applied },
            Answer::Refused(refused) => {
                self.facts.learn(&batch, refused);
                Heard::DecideAgain
            }
            Answer::Contended => {
                self.pending = Some((batch.clone(), meaning));
                Heard::SendAgain(batch)
            }
        }
    }

    /// The answer was lost: what to send again. Never a new batch, never a guess.
    #[must_use]
    pub fn lost(&self) -> Option<Arc<Batch>> {
        if planted(Bug::LostAnswerTakenForFailure) {
            return None;
        }
        self.pending.as_ref().map(|(batch, _)| batch.clone())
    }
}
