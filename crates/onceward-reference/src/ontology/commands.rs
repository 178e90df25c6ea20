//! Commands in: each becomes one event, once. The event id is the key (C06), the expected number
//! the guard (C05); nothing else is asked before the append, so that of two commands one wins.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::WARNING;
use http::{HeaderMap, HeaderValue, StatusCode};
use onceward::core::canonical::member_source;
use onceward::core::limits::MAX_POSITION;
use onceward::events::{Append, AppendVerdict, Appended, EventStore, EventsError};
use onceward::http::{Caller, names};
use serde::Deserialize;
use serde_json::{Value, json};

use super::problem::{Answer, Problem};
use super::{Ontology, Target, front};

/// Bytes of a command at most: an append and its keys have to fit into one batch.
pub(super) const BODY_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of an aggregate's id at most.
pub(super) const AGGREGATE_ID_BYTES_MAX: usize = 480;
/// Bytes of ids at most, and what to say of others.
const EVENT_ID: (usize, &str) = (512, "must be a text of 1 to 512 bytes");
const AGGREGATE_ID: (usize, &str) = (AGGREGATE_ID_BYTES_MAX, "must be a text of 1 to 480 bytes");
/// Where no aggregate ever is: a command that expects it is refused with the number that the
/// aggregate is at, unless its event is known.
const NOWHERE: u64 = u64::MAX;

/// What a command does to its aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Create,
    Update,
    Delete,
}

impl Kind {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => DELETE,
        }
    }
}

/// The kind of an event that ends what it is about.
const DELETE: &str = "delete";

/// A command, checked.
#[derive(Debug)]
struct Command {
    event_id: String,
    aggregate_id: String,
    kind: Kind,
    target: Target,
    expected_seq: Option<u64>,
    payload: Bytes,
}

/// Whether a command may follow the event that it expects to be the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Follows {
    /// It may.
    Yes,
    /// There is no such event yet.
    Unseen,
    /// It is a create, and that event is no delete.
    Alive,
    /// That event is a delete.
    Deleted,
    /// That event is about something else.
    Other(Target),
}

/// `POST /v1/commands`.
pub(super) async fn command(
    State(ontology): State<Ontology>,
    headers: HeaderMap,
    caller: axum::Extension<Caller>,
    body: Bytes,
) -> Answer {
    if !ontology.may_write(&caller) {
        return Err(Problem::forbidden());
    }
    let command = Command::read(&body)?;
    let correlation_id = headers.get(names::X_CORRELATION_ID);
    let correlation_id = correlation_id.and_then(|id| id.to_str().ok()).map(str::to_owned);
    // In a task of its own: a client that goes away does not take back what is reserved.
    let run = async move { command.run(&ontology, &caller.tenant, correlation_id).await };
    front::in_own_task(run).await
}

impl Command {
    fn read(body: &Bytes) -> Result<Self, Problem> {
        // JSON with one meaning: no member twice, no number that can't be kept.
        let payload = member_source(body, "payload")
            .map_err(|error| Problem::malformed(&error.to_string()))?;
        let value: Value =
            serde_json::from_slice(body).map_err(|error| Problem::malformed(&error.to_string()))?;
        let Value::Object(members) = &value else {
            return Err(Problem::malformed("a command is a JSON object"));
        };
        let mut errors = Vec::new();
        let mut text = |pointer: &'static str, (bytes_max, message): (usize, &'static str)| {
            let text = members.get(&pointer[1..]).and_then(Value::as_str).unwrap_or_default();
            if text.is_empty() || text.len() > bytes_max {
                errors.push((pointer, message));
            }
            text.to_owned()
        };
        let event_id = text("/event_id", EVENT_ID);
        let aggregate_id = text("/aggregate_id", AGGREGATE_ID);
        let kind = members.get("kind").and_then(|kind| Kind::deserialize(kind).ok());
        if kind.is_none() {
            errors.push(("/kind", "must be create, update or delete"));
        }
        let target = match members.get("target") {
            None | Some(Value::Null) => Some(Target::Instance),
            Some(target) => target.as_str().and_then(Target::parse),
        };
        if target.is_none() {
            errors.push(("/target", "must be instance or class"));
        }
        let expected_seq = match members.get("expected_seq") {
            None | Some(Value::Null) => None,
            Some(number) => {
                let number = whole(number).filter(|number| *number <= MAX_POSITION);
                if number.is_none() {
                    errors.push(("/expected_seq", "must be a whole number, 0 or more"));
                }
                number
            }
        };
        if !matches!(members.get("payload"), None | Some(Value::Null | Value::Object(_))) {
            errors.push(("/payload", "must be an object"));
        }
        let (Some(kind), Some(target), true) = (kind, target, errors.is_empty()) else {
            return Err(Problem::invalid(&errors));
        };
        // As it was sent, byte for byte.
        let payload = match payload {
            Some(payload) if payload != b"null" => body.slice_ref(payload),
            _ => Bytes::from_static(b"{}"),
        };
        Ok(Self { event_id, aggregate_id, kind, target, expected_seq, payload })
    }

    /// The number that the aggregate has to be at, or why the command can't say so.
    fn expected(&self) -> Result<u64, Problem> {
        match (self.kind, self.expected_seq) {
            (Kind::Create, expected) => Ok(expected.unwrap_or(0)),
            (Kind::Update | Kind::Delete, None) => Err(Problem::expected_seq_required()),
            // There is nothing to change before the first event.
            (Kind::Update | Kind::Delete, Some(0)) => Ok(NOWHERE),
            (Kind::Update | Kind::Delete, Some(expected)) => Ok(expected),
        }
    }

    /// Whether the command may follow the event that it expects to be the last one: a create what
    /// is deleted, everything else what is not, and each only what is about the same. That event
    /// never changes: what is seen of it holds.
    async fn follows(
        &self,
        events: &EventStore,
        tenant: &str,
        expected: u64,
    ) -> Result<Follows, Problem> {
        if expected == 0 || expected == NOWHERE {
            return Ok(Follows::Yes);
        }
        let last = events.read_aggregate(tenant, &self.aggregate_id, expected - 1, 1).await?;
        let Some((_, last)) = last.first() else { return Ok(Follows::Unseen) };
        let (target, kind) = Target::split(&last.kind).unwrap_or((self.target, &last.kind));
        Ok(match (kind == DELETE, self.kind == Kind::Create) {
            _ if target != self.target => Follows::Other(target),
            (true, false) => Follows::Deleted,
            (false, true) => Follows::Alive,
            _ => Follows::Yes,
        })
    }

    async fn run(
        self,
        ontology: &Ontology,
        tenant: &str,
        correlation_id: Option<String>,
    ) -> Answer {
        let asked = self.expected()?;
        let events = ontology.events();
        let mut append = Append {
            tenant: tenant.to_owned(),
            aggregate_id: self.aggregate_id.clone(),
            event_id: self.event_id.clone(),
            kind: self.target.join(self.kind.as_str()),
            payload: self.payload.clone(),
            expected_seq: None,
            correlation_id,
        };
        let (follows, verdict) = loop {
            let follows = self.follows(events, tenant, asked).await?;
            append.expected_seq = Some(if follows == Follows::Yes { asked } else { NOWHERE });
            match events.append(&append).await? {
                // The number is taken by an event that could not be seen yet.
                AppendVerdict::SequenceMismatch { current }
                    if follows == Follows::Unseen && current == asked =>
                {
                    events.wait_number(tenant, &append.aggregate_id, asked).await?;
                }
                verdict => break (follows, verdict),
            }
        };
        match verdict {
            AppendVerdict::Appended(done) => Ok(answer(StatusCode::CREATED, &append, done)),
            AppendVerdict::Again(first) => Ok(answer(StatusCode::OK, &append, first)),
            AppendVerdict::Ignored { first, .. } => {
                tracing::warn!("an event id came again with another payload; nothing was appended");
                // The first result is of the aggregate that it was about.
                let there = events.find(tenant, &append.event_id).await?;
                let (_, there) = there.ok_or(EventsError::NotDurableYet)?;
                let append = Append { aggregate_id: there.aggregate_id, ..append };
                let mut response = answer(StatusCode::OK, &append, first);
                let warning = "299 onceward \"this event_id was used with another payload\"";
                response.headers_mut().insert(WARNING, HeaderValue::from_static(warning));
                Ok(response)
            }
            AppendVerdict::Mismatch { differs } => {
                let there = events.find(tenant, &append.event_id).await?;
                let there = there.map(|(_, there)| there.kind);
                Err(Problem::payload_mismatch(&members(differs, &append.kind, there.as_deref())))
            }
            AppendVerdict::SequenceMismatch { current } => Err(match follows {
                Follows::Deleted if current == asked => Problem::deleted(current),
                Follows::Other(target) if current == asked => {
                    Problem::other_target(current, target)
                }
                _ => Problem::sequence_mismatch(current),
            }),
            AppendVerdict::ExpectedSeqRequired => Err(Problem::expected_seq_required()),
        }
    }
}

/// A whole number, however it is spelled (A07).
fn whole(number: &Value) -> Option<u64> {
    /// Up to here a float tells neighbours apart.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    let spelled = || {
        let float = number.as_f64().filter(|float| float.fract() == 0.0)?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range")]
        (0.0..EXACT_MAX).contains(&float).then_some(float as u64)
    };
    number.as_u64().or_else(spelled)
}

/// The members of a command that differ: the kind of its event holds two of them.
fn members(differs: Vec<String>, kind: &str, there: Option<&str>) -> Vec<String> {
    let (Some(ours), Some(theirs)) = (Target::split(kind), there.and_then(Target::split)) else {
        return differs;
    };
    let named = |pointer: String| match pointer.as_str() {
        "/kind" => [("/kind", ours.1 != theirs.1), ("/target", ours.0 != theirs.0)]
            .into_iter()
            .filter(|(_, differs)| *differs)
            .map(|(pointer, _)| pointer.to_owned())
            .collect(),
        _ => vec![pointer],
    };
    differs.into_iter().flat_map(named).collect()
}

fn answer(status: StatusCode, append: &Append, done: Appended) -> Response {
    let body = json!({
        "event_id": append.event_id,
        "aggregate_id": append.aggregate_id,
        "sequence_number": done.sequence_number,
    });
    (status, axum::Json(body)).into_response()
}
