//! Events of many aggregates, handled together.
//!
//! Rule: together means one look and shared transactions, nothing else: each event has its own
//! claim, its own commit and its own end. What does not go well together (a failure, a document
//! that others wrote meanwhile, a panic) is done alone, so that it is nobody else's trouble.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::join_all;
use onceward_core::decide::Claim;

use super::handler::{Handled, Handler, answered};
#[cfg(feature = "sqlite")]
use super::handler::{ran_own, with_event};
use super::seen::SeenEvent;
use super::work::Way;
use super::{HandlerError, work};
use crate::engine::{EngineError, OnceVerdict};
use crate::events::Event;
use crate::points::{Point, reach};
use crate::worker::Done;

/// What became of an event, or why nobody knows.
type Ended = Result<Handled, EngineError>;

/// An event that is being handled.
struct Case {
    event: Arc<Event>,
    /// None: its name breaks a bound.
    claim: Option<Claim>,
    state: State,
}

/// How far it is.
enum State {
    /// It has no end yet.
    Open,
    /// The work said why not; that is to be recorded.
    Failed(HandlerError),
    Ended(Ended),
}

impl Case {
    fn is_open(&self) -> bool {
        self.claim.is_some() && matches!(self.state, State::Open)
    }
}

impl Handler {
    /// Whether events of many aggregates are better handed over together.
    pub(super) fn takes_many(&self) -> bool {
        let inner = &self.0;
        inner.options.registry
            && match &inner.work.0 {
                Way::InStoreMany(_) => true,
                #[cfg(feature = "sqlite")]
                Way::OwnSql(_) => true,
                Way::InStore(_) | Way::Elsewhere(_) => false,
            }
    }

    /// Handles events of different aggregates; their ends come in their order.
    pub(super) async fn handle_many(&self, events: Vec<Arc<Event>>) -> Vec<Ended> {
        if events.len() == 1 || !self.takes_many() {
            let each = events.into_iter().map(|event| self.handle_shared(event));
            return join_all(each).await;
        }
        let mut cases: Vec<Case> = events.into_iter().map(|event| self.case(event)).collect();
        match &self.0.work.0 {
            Way::InStoreMany(work) => self.in_store_many(&mut cases, work).await,
            #[cfg(feature = "sqlite")]
            Way::OwnSql(work) => self.own_sql_many(&mut cases, work).await,
            Way::InStore(_) | Way::Elsewhere(_) => {}
        }
        join_all(cases.into_iter().map(|case| self.end(case))).await
    }

    fn case(&self, event: Arc<Event>) -> Case {
        Case { claim: self.claim(&event).ok(), event, state: State::Open }
    }

    /// The end of a case; one that is open is handled alone.
    async fn end(&self, case: Case) -> Ended {
        let Some(claim) = case.claim else { return self.handle_shared(case.event).await };
        let handled = match case.state {
            State::Open => return self.run(case.event, claim).await,
            State::Failed(error) => self.failed(&case.event, &claim, error).await?,
            State::Ended(ended) => ended?,
        };
        self.note(&claim, &handled);
        Ok(handled)
    }

    async fn in_store_many(&self, cases: &mut [Case], work: &work::InStoreMany) {
        let engine = &self.0.engine;
        if let Err(error) = self.look_at(cases).await {
            for case in cases.iter_mut().filter(|case| case.is_open()) {
                case.state = State::Ended(Err(error.clone()));
            }
        }
        let open: Vec<&mut Case> = cases.iter_mut().filter(|case| case.is_open()).collect();
        if open.is_empty() {
            return;
        }
        reach(Point::BeforeEffect);
        let seen = open.iter().map(|case| case.event.clone());
        let seen = seen.map(|event| SeenEvent { engine: engine.clone(), event }).collect();
        let Some(worked) = ends_of(async { work(seen).await }, open.len()).await else { return };
        reach(Point::AfterEffect);
        reach(Point::BeforeDone);
        let mut requests = Vec::with_capacity(open.len());
        let mut asked = Vec::with_capacity(open.len());
        for (case, worked) in open.into_iter().zip(worked) {
            match (worked, case.claim.clone()) {
                (Ok(done), Some(claim)) => {
                    requests.push((claim, done.into_completion()));
                    asked.push(case);
                }
                (Ok(_), None) => {}
                (Err(error), _) => case.state = State::Failed(error),
            }
        }
        let verdicts = engine.run_once_many(&requests).await;
        for ((case, (claim, _)), verdict) in asked.into_iter().zip(&requests).zip(verdicts) {
            case.state = match verdict {
                Ok(OnceVerdict::Ran { .. }) => State::Ended(Ok(Handled::Done)),
                Ok(OnceVerdict::Not(verdict)) if self.overtaken(claim, &verdict) => State::Open,
                Ok(OnceVerdict::Not(verdict)) => State::Ended(Ok(answered(verdict))),
                Err(error) if error.is_retryable() => State::Ended(Err(error)),
                Err(error) => State::Failed(HandlerError::permanent(error)),
            };
        }
    }

    /// Finds out which of them are not to be worked on, in one look for those whose aggregates
    /// this process has not seen right before them.
    async fn look_at(&self, cases: &mut [Case]) -> Result<(), EngineError> {
        let unsure = |case: &&mut Case| {
            case.is_open() && case.claim.as_ref().is_some_and(|claim| !self.comes_next(claim))
        };
        let mut unsure: Vec<&mut Case> = cases.iter_mut().filter(unsure).collect();
        let claims: Vec<&Claim> = unsure.iter().filter_map(|case| case.claim.as_ref()).collect();
        let verdicts = self.0.engine.stand(&claims).await?;
        for (case, verdict) in unsure.iter_mut().zip(verdicts) {
            if let Some(verdict) = verdict {
                case.state = State::Ended(Ok(answered(verdict)));
            }
        }
        Ok(())
    }

    #[cfg(feature = "sqlite")]
    async fn own_sql_many(&self, cases: &mut [Case], work: &work::OwnSql) {
        reach(Point::BeforeEffect);
        let mut open: Vec<&mut Case> = cases.iter_mut().filter(|case| case.is_open()).collect();
        let requests = open.iter().filter_map(|case| {
            let claim = case.claim.clone()?;
            Some((claim, with_event(work.clone(), case.event.clone())))
        });
        let ends = self.0.engine.run_once_with_many(requests.collect()).await;
        for (case, ended) in open.iter_mut().zip(ends) {
            case.state = match ran_own(ended) {
                Ok(Ok(handled)) => State::Ended(Ok(handled)),
                Ok(Err(error)) => State::Failed(error),
                Err(error) => State::Ended(Err(error)),
            };
        }
    }
}

/// The ends of work that was done together. None when it panicked or left one out: nobody can tell
/// whose fault that was, so each is tried alone.
async fn ends_of(
    work: impl Future<Output = Vec<Result<Done, HandlerError>>>,
    count: usize,
) -> Option<Vec<Result<Done, HandlerError>>> {
    let worked = AssertUnwindSafe(work).catch_unwind().await.ok()?;
    (worked.len() == count).then_some(worked)
}
