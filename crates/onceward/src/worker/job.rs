//! Making jobs: the key of contract A18, the payload's fingerprint, and the job's own terms.
//!
//! A job that follows a write names resource and version (`mission/7@3`); otherwise the second
//! write's job would be a duplicate of the first one's.

use std::time::Duration;

use onceward_core::Bytes;
use onceward_core::audit::Trace;
use onceward_core::decide::{JobOrder, NewJob};
use onceward_core::fingerprint::{CanonicalBody, FingerprintPolicy, content_hash16};
use onceward_core::key::{Key, Kind};
use onceward_core::limits::LimitError;
use onceward_core::record::Terms;

/// A job to be made.
///
/// The same key with the same payload is the same job; with another payload it is a mismatch.
#[derive(Debug, Clone)]
pub struct Job {
    tenant: String,
    queue: String,
    job_type: String,
    resource: Option<String>,
    subject: Option<String>,
    payload: Bytes,
    run_in: Duration,
    priority: u8,
    terms: Terms,
    trace: Trace,
}

impl Job {
    /// A job of this type, due at once, five attempts, without payload.
    pub fn new(
        tenant: impl Into<String>,
        queue: impl Into<String>,
        job_type: impl Into<String>,
    ) -> Self {
        Self {
            tenant: tenant.into(),
            queue: queue.into(),
            job_type: job_type.into(),
            resource: None,
            subject: None,
            payload: [].into(),
            run_in: Duration::ZERO,
            priority: 0,
            terms: Terms::job(),
            trace: Trace::default(),
        }
    }

    /// What it is about, with its version. Default: the payload's hash.
    #[must_use]
    pub fn resource(mut self, resource: impl Into<String>) -> Self {
        self.resource = Some(resource.into());
        self
    }

    /// What the handler gets; JSON is compared by its canonical form, anything else by its bytes.
    #[must_use]
    pub fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.payload = payload.into();
        self
    }

    /// Jobs of one subject in one queue run one after the other, in the order of their making.
    #[must_use]
    pub fn subject(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// Not before this long from now.
    #[must_use]
    pub fn run_in(mut self, run_in: Duration) -> Self {
        self.run_in = run_in;
        self
    }

    /// 0 (default) to 9; higher ones are taken first.
    #[must_use]
    pub fn priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// Lease, attempts, retention. Default: [`Terms::job`].
    #[must_use]
    pub fn terms(mut self, terms: Terms) -> Self {
        self.terms = terms;
        self
    }

    /// Correlation ids; what is missing is taken from the request or job that makes it.
    #[must_use]
    pub fn trace(mut self, trace: Trace) -> Self {
        self.trace = trace;
        self
    }

    /// The job as the engine takes it.
    ///
    /// # Errors
    /// When a part breaks its bound, or the payload is JSON without a canonical form.
    pub fn build(self) -> Result<NewJob, LimitError> {
        let policy = FingerprintPolicy::default();
        let canonical = CanonicalBody::new(&self.payload, &policy).map_err(|error| {
            LimitError::new("payload", error, "JSON that has a canonical form, or not JSON")
        })?;
        let fingerprint = canonical.fingerprint();
        let resource = self.resource.unwrap_or_else(|| content_hash16(canonical.bytes()));
        let within = [self.job_type.as_str()];
        let key = Key::within(Kind::Job, &self.tenant, &self.queue, &within, &resource)?;
        let order = self.subject.map(|subject| JobOrder::new(&key, &subject)).transpose()?;
        let mut job = NewJob::new(key, fingerprint, self.payload);
        job.run_in_ms = u64::try_from(self.run_in.as_millis()).unwrap_or(u64::MAX);
        job.priority = self.priority;
        job.order = order;
        job.terms = self.terms;
        job.trace = self.trace;
        job.validate()?;
        Ok(job)
    }
}

/// The job key in the form of contract A18: `job:{organisation}:{queue}:{type}:{resource}`, each
/// part escaped.
#[must_use]
pub fn job_key(key: &Key) -> String {
    format!("job:{}:{}", key.tenant_column(), key.name_column())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a18_the_key_is_organisation_queue_type_and_resource_or_hash() {
        let job = Job::new("a:b", "mail", "welcome").resource("user/7@3").build().unwrap();
        assert_eq!(job_key(&job.key), "job:a%3Ab:mail:welcome:user/7@3");
        let make = |payload: &str| {
            Job::new("acme", "mail", "welcome").payload(payload.as_bytes()).build().unwrap()
        };
        let (one, same, other) = (make(r#"{"a":1,"b":2}"#), make(r#"{"b":2, "a":1}"#), make("{}"));
        assert_eq!((&one.key, one.fingerprint), (&same.key, same.fingerprint));
        assert_ne!(one.key, other.key);
        assert_eq!(job_key(&other.key), "job:acme:mail:welcome:44136fa355b3678a");
    }
}
