//! From what was judged to what is committed: document, key, last timestamp and audit entry.
//!
//! The document is created under `exactly{0}`, or written over where ids are not checked; the key
//! of the id points at it for as long as records are kept and holds no copy. The last timestamp
//! moves in the same commit, and only forward. What is refused leaves its audit entry, and nothing
//! under its id.

use onceward::core::Bytes;
use onceward::core::audit::Trace;
use onceward::core::decide::{Change, Claim, DoneKey, Effects, Span};
use onceward::core::guard::Guard;
use onceward::core::limits::LimitError;
use onceward::core::record::{Body, Terms};
use onceward::engine::Seen;
use serde_json::json;
use serde_json::value::RawValue;

use super::answer::why;
use super::attempt::{Action, Attempt};
use super::measurement::{Measurement, last_of};
use super::rules::{How, Judged, Rules};
use super::{DAY_MS, Settings};

/// Writes that one measurement takes at most: document, key, audit entry.
pub(super) const WRITES_PER_ITEM: usize = 3;

/// What every measurement of a request has in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) tenant: &'a str,
    pub(super) trace: &'a Trace,
    pub(super) settings: &'a Settings,
}

/// One measurement as it was judged.
pub(super) struct Verdict<'a> {
    pub(super) measurement: &'a Measurement,
    pub(super) payload: Option<&'a RawValue>,
    pub(super) rules: &'a Rules,
    pub(super) judged: &'a Judged,
}

impl How {
    /// What the audit and the result say.
    pub(super) const fn action(self) -> Action {
        match self {
            Self::Fits => Action::Accepted,
            Self::Overridden => Action::Overridden,
            Self::Unchecked => Action::Unchecked,
            Self::Backfilled => Action::Backfilled,
        }
    }
}

impl Judged {
    /// What the audit says.
    pub(super) const fn action(&self) -> Action {
        match self {
            Self::Accepted(how) => how.action(),
            Self::Duplicate(_) => Action::Duplicate,
            Self::Conflict(_) | Self::OutOfOrder { .. } | Self::Future => Action::Rejected,
            Self::Skipped => Action::Skipped,
        }
    }
}

impl Verdict<'_> {
    /// Adds what is to be committed, but the last timestamp; answers the result of what is kept.
    ///
    /// # Errors
    /// When an id breaks its bound.
    pub(super) fn add(
        &self,
        effects: &mut Effects,
        context: Context<'_>,
        (seen, now_ms): (&Seen, u64),
    ) -> Result<Option<Bytes>, LimitError> {
        let Self { measurement, rules, judged, .. } = self;
        let mut kept = None;
        if let Judged::Accepted(how) = judged {
            let status = match how {
                How::Overridden => "overridden",
                How::Fits | How::Unchecked | How::Backfilled => "accepted",
            };
            let result = measurement.result(status, now_ms);
            let (change, _) = seen.change(Body::Set(result.clone()))?;
            // Where ids are not checked one may come twice: of one commit, the last one stands.
            let same = |other: &&mut Change| other.guard.subject == change.guard.subject;
            match effects.changes.iter_mut().find(same) {
                Some(other) => *other = change,
                None => effects.changes.push(change),
            }
            if rules.ids {
                effects.keys.push(self.done_key(context)?);
            }
            kept = Some(result);
        }
        if rules.backfill && kept.is_none() {
            // Running it again tries nothing anew.
            return Ok(None);
        }
        let reason = match judged {
            Judged::Accepted(How::Overridden) => {
                Some("out of order, and X-Force-Override was used")
            }
            Judged::Accepted(How::Unchecked) => Some(rules.unchecked()),
            Judged::Accepted(How::Backfilled) => Some("it came before there were rules"),
            Judged::Accepted(How::Fits) => None,
            Judged::Duplicate(_) => Some("the same measurement is known"),
            Judged::Skipped => Some("an earlier measurement of this user was out of order"),
            refused => why(refused).map(|(error, _)| error),
        };
        let attempt = Attempt {
            user_id: &measurement.user_id,
            id: Some(&measurement.id),
            action: judged.action(),
            reason,
            payload: self.payload,
            payload_hash: Some(measurement.payload.fingerprint().to_string()),
        };
        effects.audit.push(attempt.entry(context.tenant, context.trace));
        Ok(kept)
    }

    /// The key of its id, as done: it points at the document.
    ///
    /// # Errors
    /// When the id breaks its bound.
    pub(super) fn done_key(&self, context: Context<'_>) -> Result<DoneKey, LimitError> {
        let Self { measurement, .. } = self;
        let key = measurement.key(context.tenant)?;
        let mut claim = Claim::new(key, measurement.payload.fingerprint());
        let days = u64::from(context.settings.idempotency_days);
        // Afterwards the document guards the id: nothing is gained by remembering the key.
        claim.terms = Terms { retain_ms: days * DAY_MS, remember_ms: 0, ..Terms::default() };
        claim.trace = context.trace.clone();
        let document = measurement.subject(context.tenant)?;
        let outcome = json!({ "document": document.id() }).to_string();
        Ok(DoneKey { claim, outcome: outcome.into_bytes().into() })
    }
}

/// The move of a user's last timestamp by measurements that were accepted together, from the
/// earliest of them to the latest.
///
/// # Errors
/// When the user's name or a timestamp breaks its bound.
pub(super) fn span(
    tenant: &str,
    user_id: &str,
    rules: &Rules,
    (first_ms, through_ms): (u64, u64),
) -> Result<Span, LimitError> {
    let guard = Guard::new(last_of(tenant, user_id)?, rules.guard(first_ms))?;
    Ok(Span { guard, through: through_ms })
}
