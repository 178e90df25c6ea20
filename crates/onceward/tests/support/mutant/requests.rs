//! What is wrong with how a mutant takes a request.

use std::sync::Arc;

use onceward::core::Bytes;
use onceward::core::batch::{Answer, Batch, Condition, Write};
use onceward::core::fingerprint::fingerprint_bytes;
use onceward::core::key::{Key, Subject};
use onceward::core::limits::{LimitError, MAX_BATCH_BYTES, MAX_BATCH_WRITES};
use onceward::core::record::{Body, Draft, FenceWrite};
use onceward::core::stamp::{Rev, Token};
use onceward::store::{Committed, Fact, Read, Store, StoreError};
use onceward::testing::conformance::bench::draft_of;

use super::answers::fallen;
use super::{Mutant, Mutation};

/// The owner of a record that passes for deleted.
pub(super) const DELETED: &str = "deleted";

/// Keys longer than this are refused by a mutant.
const LONG_KEY_BYTES: usize = 2_048;

impl Mutant {
    /// What reaches the store of a batch.
    pub(super) fn request(&self, batch: &Batch) -> Result<Batch, StoreError> {
        let mut batch = batch.clone();
        for condition in &mut batch.conditions {
            self.condition(condition);
        }
        for write in &mut batch.writes {
            match write {
                Write::Put(draft) => self.draft(draft),
                Write::Delete(key) => {
                    let name = format!("{}:{}", key.tenant_column(), key.name_column());
                    self.deleted.lock().unwrap().insert(name);
                    if let Some(left) = self.left_behind(key) {
                        *write = left;
                    }
                }
                Write::Mark { subject, position, value } => {
                    self.mark(subject, position, value);
                }
                Write::Audit(_) | Write::Prune { .. } => {}
            }
        }
        self.whole(&mut batch)?;
        Ok(batch)
    }

    fn condition(&self, condition: &mut Condition) {
        match (self.mutation, &mut *condition) {
            (Mutation::AbsentNeverHolds, Condition::Absent(key)) => {
                *condition = Condition::RevIs(key.clone(), Rev(0));
            }
            (Mutation::RevOffByOne, Condition::RevIs(_, rev)) => rev.0 += 1,
            (Mutation::RevsFall, Condition::RevIs(_, rev)) => *rev = fallen(*rev),
            (Mutation::PositionOffByOne, Condition::PositionIs(_, position)) => *position += 1,
            (Mutation::AtMostIsBelow, Condition::PositionAtMost(subject, position)) => {
                *condition = match position.checked_sub(1) {
                    Some(below) => Condition::PositionAtMost(subject.clone(), below),
                    None => Condition::PositionIs(subject.clone(), u64::MAX),
                };
            }
            (
                Mutation::MarkNamesFold,
                Condition::PositionIs(subject, _) | Condition::PositionAtMost(subject, _),
            ) => *subject = folded(subject),
            _ => {}
        }
    }

    fn draft(&self, draft: &mut Draft) {
        match (self.mutation, draft.fence) {
            (Mutation::KeepGrants, FenceWrite::Keep) => draft.fence = FenceWrite::Grant,
            (Mutation::EndKeeps, FenceWrite::End) => draft.fence = FenceWrite::Keep,
            (Mutation::OnceGrants, FenceWrite::Once) => draft.fence = FenceWrite::Grant,
            _ => {}
        }
        for body in [&mut draft.outcome, &mut draft.payload] {
            match body {
                Body::Clear if self.is(Mutation::BodiesNotCleared) => *body = Body::Keep,
                Body::Set(bytes) if self.is(Mutation::BodiesAreText) => {
                    let text = String::from_utf8_lossy(bytes).into_owned();
                    *body = Body::Set(Bytes::from(text.into_bytes()));
                }
                _ => {}
            }
        }
    }

    fn mark(&self, subject: &mut Subject, position: &mut u64, value: &mut Body) {
        match self.mutation {
            Mutation::MarkNamesFold => *subject = folded(subject),
            Mutation::ValueNotCleared if *value == Body::Clear => *value = Body::Keep,
            Mutation::MarkSticks if self.inner.snapshot().mark(subject).is_some() => *position = 0,
            _ => {}
        }
    }

    /// What a delete leaves of a record that passes for deleted, with its bytes.
    fn left_behind(&self, key: &Key) -> Option<Write> {
        if !self.is(Mutation::DeleteKeepsBodies) {
            return None;
        }
        let state = self.inner.snapshot();
        let mut left = draft_of(state.record(key)?);
        let outcome = state.outcome(key)?.clone();
        left.record.outcome = Some(fingerprint_bytes(&outcome));
        left.record.owner = Some(DELETED.into());
        left.outcome = Body::Set(outcome);
        Some(Write::Put(Box::new(left)))
    }

    /// What is wrong with a batch as a whole.
    fn whole(&self, batch: &mut Batch) -> Result<(), StoreError> {
        let too_large = |field| LimitError::new(field, "too large", "smaller").into();
        match self.mutation {
            Mutation::LastConditionIgnored => drop(batch.conditions.pop()),
            Mutation::HalfToken => batch.token = Token(batch.token.0 & u128::from(u64::MAX)),
            Mutation::OneWriteTooMany => batch.writes.truncate(MAX_BATCH_WRITES),
            Mutation::MarkAtZeroDropped => {
                batch.writes.retain(|write| !matches!(write, Write::Mark { position: 0, .. }));
            }
            Mutation::OneWriteTooFew if batch.writes.len() >= MAX_BATCH_WRITES => {
                return Err(too_large("writes"));
            }
            Mutation::OneByteTooFew if batch.bytes() >= MAX_BATCH_BYTES => {
                return Err(too_large("bytes"));
            }
            Mutation::LongKeysRefused => {
                let long = |key: &Key| {
                    key.tenant_column().len() + key.name_column().len() > LONG_KEY_BYTES
                };
                if batch.keys().any(long) {
                    return Err(too_large("key"));
                }
            }
            Mutation::BytesCut if batch.bytes() > MAX_BATCH_BYTES => {
                for write in &mut batch.writes {
                    if let Write::Put(draft) = write {
                        draft.outcome = Body::Set(Bytes::from([1]));
                    }
                }
            }
            Mutation::RowTwiceTaken => {
                while batch.validate().is_err_and(|limit| limit.field == "batch") {
                    batch.writes.remove(0);
                }
            }
            Mutation::DeleteOfNothingRefused => {
                let state = self.inner.snapshot();
                let gone = batch.writes.iter().find_map(|write| match write {
                    Write::Delete(key) if state.record(key).is_none() => Some(key.clone()),
                    _ => None,
                });
                // A resend finds nothing to delete either, but is recognised before.
                batch.conditions.extend(gone.map(|key| Condition::RevIs(key, Rev(1))));
            }
            _ => {}
        }
        Ok(())
    }

    /// Adds a condition that fails to every batch of a group of which one is refused.
    pub(super) async fn spoil(&self, sent: &mut Vec<Arc<Batch>>) -> Result<(), StoreError> {
        if !self.is(Mutation::RefusalSpreads) || sent.len() < 2 {
            return Ok(());
        }
        let now = self.inner.load(vec![]).await?.now;
        let answers = self.inner.snapshot().apply_group(sent.iter().map(|batch| &**batch), now);
        if answers.iter().any(|answer| matches!(answer, Answer::Refused(_))) {
            let never = Condition::RevIs(Key::parse("none:job:none:none")?, Rev(1));
            for batch in sent {
                let mut spoilt = (**batch).clone();
                spoilt.conditions.push(never.clone());
                *batch = Arc::new(spoilt);
            }
        }
        Ok(())
    }

    /// Answers a refusal at once; drops the conditions of what is written a moment later.
    pub(super) async fn look_then_strip(
        &self,
        sent: &mut Vec<Arc<Batch>>,
    ) -> Result<Option<Committed>, StoreError> {
        if !self.is(Mutation::LookThenWrite) || sent.len() != 1 {
            return Ok(None);
        }
        let now = self.inner.load(vec![]).await?.now;
        let answers = self.inner.snapshot().apply_group(sent.iter().map(|batch| &**batch), now);
        let refused = |answer: &Answer| matches!(answer, Answer::Refused(_));
        let again = |answer: &Answer| matches!(answer, Answer::Applied(a) if a.again);
        if answers.iter().any(|answer| refused(answer) || again(answer)) {
            return Ok(Some(Committed { answers }));
        }
        // The moment in which the others look too.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        for batch in sent {
            *batch = Arc::new(Batch { conditions: vec![], ..(**batch).clone() });
        }
        Ok(None)
    }

    /// What reaches the store of a load.
    pub(super) fn requested(&self, reads: &mut [Read]) {
        for read in reads {
            match read {
                Read::Record { payload, .. } if self.is(Mutation::PayloadUnasked) => {
                    *payload = true;
                }
                Read::Mark(subject) if self.is(Mutation::MarkNamesFold) => {
                    *subject = folded(subject);
                }
                Read::Mark(subject) if self.is(Mutation::MarkGoesWithRecord) => {
                    let name = format!("{}:{}", subject.tenant_column(), subject.name_column());
                    if self.deleted.lock().unwrap().contains(&name) {
                        *subject = Subject::new("none", "none", "none").unwrap();
                    }
                }
                _ => {}
            }
        }
    }
}

/// The same subject with its name in lower case, where that is a name.
pub(super) fn folded(subject: &Subject) -> Subject {
    let name = subject.name_column().to_lowercase();
    Subject::from_columns(subject.tenant_column(), &name).unwrap_or_else(|_| subject.clone())
}

/// The audit entries of a batch, as a batch of their own.
pub(super) fn audit_of(batch: &Batch) -> Option<Arc<Batch>> {
    let is_audit = |write: &&Write| matches!(write, Write::Audit(_));
    let writes: Vec<_> = batch.writes.iter().filter(is_audit).cloned().collect();
    let token = Token(!batch.token.0);
    (!writes.is_empty()).then(|| Arc::new(Batch { token, conditions: vec![], writes }))
}

/// Whether a fact shows a record that passes for deleted.
pub(super) fn passes_for_deleted(fact: &Fact) -> bool {
    match fact {
        Fact::Record(Some(found)) => found.stored.record.owner.as_deref() == Some(DELETED),
        _ => false,
    }
}
