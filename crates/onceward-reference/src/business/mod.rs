//! The business service: holds, estimates, payment links, customers and jobs of organisations.
//!
//! Written as a user of the library writes one. A client need not send a key: then one is derived
//! from tenant, route and payload, so that a double click is one booking (E01). Each route keeps
//! its outcomes for a time of its own (E03), and a key that comes with another body is answered
//! with what differs (E04). Every write is one commit of document, record, audit entry and jobs.
//!
//! | file | what |
//! |---|---|
//! | `bookings`, `estimates`, `payments`, `customers`, `jobs` | the writes: start reading here |
//! | `command`, `resource`, `fields`, `id` | what they share: check, save, answer |
//! | `expiry` | what follows a hold: it ends |
//! | `reads`, `problem` | what is read; how refusals are said |
//! | `front` | what every request passes |

mod bookings;
mod command;
mod customers;
mod estimates;
mod expiry;
mod fields;
mod front;
mod id;
mod jobs;
mod payments;
mod problem;
mod reads;
mod resource;

pub use expiry::HOLDS;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn;
use axum::routing::{get, post, put};
use http::request::Parts;
use jiff::Timestamp;
use onceward::core::fingerprint::FingerprintPolicy;
use onceward::core::limits::LimitError;
use onceward::core::payload::KeepPayload;
use onceward::core::stamp::At;
use onceward::engine::{Engine, EngineError};
use onceward::http::{
    Caller, Code, Commits, Dialect, Door, Identity, MissingKey, OncewardLayer, Policy, RateLimit,
    Refusal, Route, Routes,
};
use onceward::worker::{Builder, Context, JobError, Worker};

use crate::principals::{self, Principal};
use crate::spelled::spelled;

/// Requests per second and caller, and how many of them may come at once.
const RATE: (u32, u32) = (1_000, 2_000);
/// How often what is past its time is dropped (E06).
const SWEEP_EVERY: Duration = Duration::from_secs(3_600);
/// How long an error is kept at most: a client that mends its request should not wait for days.
const RETAIN_ERRORS_MAX: Duration = Duration::from_secs(4 * 3_600);

/// How long the outcomes of each kind of write are kept (E03).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Of `POST /bookings/hold`. Default: 30 min.
    pub holds: Duration,
    /// Of `POST /estimates/draft`. Default: 24 h.
    pub estimates: Duration,
    /// Of `POST /payments/link`. Default: 7 d.
    pub payment_links: Duration,
    /// Of `PUT /customers/{id}`. Default: 1 h.
    pub customers: Duration,
    /// Of `PUT /jobs/{id}`. Default: 4 h.
    pub jobs: Duration,
    /// Of every other write. Default: 1 h.
    pub others: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        let hours = |hours: u64| Duration::from_secs(hours * 3_600);
        Self {
            holds: Duration::from_secs(30 * 60),
            estimates: hours(24),
            payment_links: hours(7 * 24),
            customers: hours(1),
            jobs: hours(4),
            others: hours(1),
        }
    }
}

impl Retention {
    /// Every write with the time that its outcomes are kept.
    fn routes(&self) -> [(&'static str, Duration); 7] {
        [
            ("POST /bookings/hold", self.holds),
            ("POST /estimates/draft", self.estimates),
            ("POST /payments/link", self.payment_links),
            ("PUT /customers/{id}", self.customers),
            ("PUT /jobs/{id}", self.jobs),
            ("POST /payments/link/{id}/pay", self.others),
            ("POST /payments/link/{id}/cancel", self.others),
        ]
    }
}

/// What the service is told.
#[derive(Debug, Clone)]
pub struct Options {
    /// Who may call. Default: the demo principals.
    pub principals: Vec<Principal>,
    /// How long outcomes are kept.
    pub retention: Retention,
    /// How long a hold keeps its place. Default: 30 min.
    pub hold_for: Duration,
    /// How long a payment link can be paid. Default: 7 d.
    pub link_for: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            principals: principals::demo(),
            retention: Retention::default(),
            hold_for: Duration::from_secs(30 * 60),
            link_for: Duration::from_secs(7 * 86_400),
        }
    }
}

/// The business service on a store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Business(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    engine: Engine,
    door: Arc<Door>,
    identity: Identity,
    hold_for: Duration,
    link_for: Duration,
}

impl Business {
    /// The service.
    ///
    /// # Errors
    /// When a retention is too short for a client's retries, or too long to be kept.
    pub fn new(engine: Engine, options: Options) -> Result<Self, LimitError> {
        let Options { principals, retention, hold_for, link_for } = options;
        let identity = principals::identity(principals);
        let door = Arc::new(door(&engine, &identity, &retention)?);
        Ok(Self(Arc::new(Inner { engine, door, identity, hold_for, link_for })))
    }

    /// What it stands on.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// The door that its writes pass.
    #[must_use]
    pub fn door(&self) -> &Arc<Door> {
        &self.0.door
    }

    /// The service as a router.
    pub fn router(&self) -> Router {
        let service = Router::new()
            .route("/bookings/hold", post(bookings::hold))
            .route("/bookings/hold/{id}", get(reads::hold))
            .route("/bookings/{id}", get(reads::hold))
            .route("/estimates/draft", post(estimates::draft))
            .route("/estimates/draft/{id}", get(reads::estimate))
            .route("/estimates/{id}", get(reads::estimate))
            .route("/payments/link", post(payments::link))
            .route("/payments/link/{id}", get(reads::payment_link))
            .route("/payments/{id}", get(reads::payment_link))
            .route("/payments/link/{id}/pay", post(payments::pay))
            .route("/payments/link/{id}/cancel", post(payments::cancel))
            .route("/customers/{id}", put(customers::put).get(reads::customer))
            .route("/jobs/{id}", put(jobs::put).get(reads::job))
            .fallback(problem::no_such_path)
            .method_not_allowed_fallback(problem::no_such_method)
            .with_state(self.clone())
            .layer(OncewardLayer::shared(self.0.door.clone()))
            .layer(from_fn(front::enter));
        spelled(service)
    }

    /// A worker for what follows its writes, to be started; any number may run, in any process. It
    /// also sweeps the store: once an hour among all of them.
    pub fn worker(&self) -> Builder {
        Worker::builder(self.engine().clone()).queue(HOLDS).handler(expiry::end).every(
            SWEEP_EVERY,
            "sweep",
            |job: Context| async move {
                job.engine().sweep(|_| {}).await?;
                Ok::<_, JobError>(())
            },
        )
    }

    /// Who asks where the layer does not insist on knowing.
    fn known(&self, head: &Parts) -> Result<Caller, Refusal> {
        let detail = "send Authorization: Bearer with a token that is known here";
        let unknown = || Refusal::new(Code::AuthRequired, detail);
        self.0.identity.identify(head).ok_or_else(unknown)
    }

    /// The store's instant and this much, as RFC 3339.
    async fn in_a_while(&self, while_: Duration) -> Result<Timestamp, EngineError> {
        let ms = u64::try_from(while_.as_millis()).unwrap_or(u64::MAX);
        Ok(instant(self.engine().now().await?.plus(ms)))
    }
}

/// An instant of the store's clock; the last that can be written where it lies beyond.
fn instant(At(ms): At) -> Timestamp {
    let ms = i64::try_from(ms).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX)
}

/// The door: who asks, how often, and what each route allows.
fn door(engine: &Engine, identity: &Identity, retention: &Retention) -> Result<Door, LimitError> {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let policy = |retain: Duration| Policy {
        dialect: Dialect::Business,
        commits: Commits::One,
        missing_key: MissingKey::Derive,
        // Two users of one tenant who send the same are one.
        per_caller: false,
        fingerprint: FingerprintPolicy::volatile(),
        // A conflict shows what differs.
        keep_payload: KeepPayload::Full,
        retain_ms: ms(retain),
        retain_errors_ms: ms(retain.min(RETAIN_ERRORS_MAX)),
        max_request_bytes: command::BODY_BYTES_MAX as u64,
        ..Policy::default()
    };
    let routes = retention.routes().into_iter();
    let routes = routes.map(|(route, retain)| Route::new(route, policy(retain)));
    let routes = Routes::written(routes.collect::<Result<_, _>>()?);
    let (count, burst) = RATE;
    Ok(Door::new(engine.clone(), identity.clone(), routes)
        .with_rate_limit(RateLimit::new(count, 1_000, burst)?))
}
