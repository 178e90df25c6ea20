//! Commands through a running server: a store that it holds is changed by it, not beside it.
//!
//! The server is named with `--server` and `--token`, or found by itself from the lock file of the
//! store. A token is never shown. What a command means is the server's business; this file asks
//! and tells.

mod queues;

use std::time::Duration;

use bytes::Bytes;
use comfy_table::Cell;
use http::header::AUTHORIZATION;
use http::{HeaderValue, Method, Request, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::Connect;
use hyper_util::rt::TokioExecutor;
use jiff::Timestamp;
use onceward_core::key::Key;
use onceward_core::stamp::At;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::admin::ACTOR_HEADER;
use crate::cli::{
    Actor, Audit, AuditExport, AuditList, AuditWanted, Command, Keys, KeysList, KeysResolve,
    ProjectArgs, ProjectWhat, ResolveAs,
};
use crate::commands::audit::{Written, verified};
use crate::commands::{by_hand, keys};
use crate::failure::Failure;
use crate::output::{Out, hex, plain_line};
use crate::report;
use crate::times::{Moment, rfc3339};

/// What people see of a record in a list.
const RECORD_COLUMNS: [(&str, &str); 8] = [
    ("KEY", "key"),
    ("STATE", "state"),
    ("ATTEMPT", "attempt"),
    ("FENCE", "fence"),
    ("CREATED", "created_at"),
    ("DUE", "due_at"),
    ("EXPIRES", "expires_at"),
    ("OWNER", "owner"),
];

/// How long a server may take; a sweep of a large store takes a while.
const WITHIN: Duration = Duration::from_secs(600);
/// Bytes of an answer that are read at most.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Entries of one answer for an export.
const EXPORT_PAGE: u16 = 500;

/// A control API.
#[derive(Debug)]
pub(crate) struct Remote {
    server: String,
    token: HeaderValue,
}

/// Whether a person was asked for consent before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Not yet.
    No,
    /// When it was tried without the server.
    Already,
}

impl Remote {
    /// The control API at this address.
    pub(crate) fn new(server: &str, token: Option<&str>) -> Result<Self, Failure> {
        let uri: Option<Uri> = server.parse().ok();
        let fits = uri.as_ref().is_some_and(|uri| {
            matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some()
        });
        if !fits {
            let message = "--server must be an address such as http://127.0.0.1:7601";
            return Err(Failure::usage("server.url", message));
        }
        let token = token.ok_or_else(|| {
            Failure::usage("server.token", "--server needs --token, or ONCEWARD_TOKEN")
        })?;
        let mut token = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| {
            Failure::usage("server.token", "--token has characters that no token has")
        })?;
        token.set_sensitive(true);
        Ok(Self { server: server.trim_end_matches('/').into(), token })
    }

    /// Calls an endpoint; a problem is a failure.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        actor: Option<&str>,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        let body = body.map(Value::to_string).unwrap_or_default();
        self.call_with(method, path, actor, body).await
    }

    /// The same with a body that is sent as it is.
    async fn call_with(
        &self,
        method: Method,
        path: &str,
        actor: Option<&str>,
        body: String,
    ) -> Result<Value, Failure> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.server))
            .header(AUTHORIZATION, self.token.clone());
        if let Some(actor) = actor {
            request = request.header(ACTOR_HEADER, named(actor)?);
        }
        let request = request.body(Full::new(Bytes::from(body)));
        let request = request.map_err(|error| self.unreachable(&error))?;
        let sent = async {
            if self.server.starts_with("https:") {
                let connector = HttpsConnectorBuilder::new()
                    .with_native_roots()
                    .map_err(|error| self.unreachable(&error))?
                    .https_only()
                    .enable_http1()
                    .build();
                self.send(Client::builder(TokioExecutor::new()).build(connector), request).await
            } else {
                self.send(Client::builder(TokioExecutor::new()).build_http(), request).await
            }
        };
        let late = |_| Failure::failed("server.timeout", format!("{} is late", self.server));
        tokio::time::timeout(WITHIN, sent).await.map_err(late)?
    }

    async fn send<C: Connect + Clone + Send + Sync + 'static>(
        &self,
        client: Client<C, Full<Bytes>>,
        request: Request<Full<Bytes>>,
    ) -> Result<Value, Failure> {
        let answer = client.request(request).await.map_err(|error| self.unreachable(&error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| self.unreachable(&*error))?.to_bytes();
        let value: Option<Value> = serde_json::from_slice(&body).ok();
        match value {
            Some(value) if status.is_success() => Ok(value),
            value => Err(self.refused(status, &value.unwrap_or_default())),
        }
    }

    fn unreachable(&self, error: &dyn std::error::Error) -> Failure {
        let mut message = format!("{} gives no answer: {error}", self.server);
        let mut source = error.source();
        while let Some(error) = source {
            message.push_str(&format!(": {error}"));
            source = error.source();
        }
        Failure::failed("server.unreachable", message)
    }

    fn refused(&self, status: http::StatusCode, problem: &Value) -> Failure {
        let code = match problem["code"].as_str().unwrap_or_default() {
            "record.absent" => "key.absent",
            "record.not_now" => "key.not_now",
            "record.stale" => "key.stale",
            "auth.required" => "auth.required",
            "auth.forbidden" => "auth.forbidden",
            "auth.locked_out" => "auth.locked_out",
            "store.unavailable" => "store.unavailable",
            "store.answer_lost" => "store.answer_lost",
            "request.invalid" => "request.invalid",
            _ => "server.refused",
        };
        let mut message = format!("{} answered {status}", self.server);
        if let Some(detail) = problem["detail"].as_str() {
            message.push_str(&format!(": {detail}"));
        }
        for error in problem["errors"].as_array().into_iter().flatten() {
            let text = |member: &str| error[member].as_str().unwrap_or_default().to_string();
            message.push_str(&format!("; {} {}", text("pointer"), text("message")));
        }
        Failure::failed(code, message)
    }
}

/// Whether a command can go through a server.
pub(crate) fn goes_through(command: &Command) -> bool {
    matches!(
        command,
        Command::Keys(_)
            | Command::Jobs(_)
            | Command::Dead(_)
            | Command::Audit(_)
            | Command::Report(_)
            | Command::Sweep
            | Command::Project(ProjectArgs { what: Some(ProjectWhat::Rebuild { .. }), .. })
    )
}

/// Runs a command through a server.
pub(crate) async fn run(
    command: &Command,
    remote: &Remote,
    asked: Asked,
    out: &Out,
) -> Result<(), Failure> {
    match command {
        Command::Keys(Keys::List(args)) => list(remote, args, out).await,
        Command::Keys(Keys::Show { key }) => show(remote, key, out).await,
        Command::Keys(Keys::Resolve(args)) => resolve(remote, args, out).await,
        Command::Keys(Keys::Erase { key, yes, actor }) => {
            if asked == Asked::No && !yes && !keys::sure(key)? {
                return out.print("Nothing was erased.\n");
            }
            let path = format!("/v1/records/{}", encoded(&key.to_string()));
            remote.call(Method::DELETE, &path, by(actor).as_deref(), None).await?;
            keys::told(key, "is erased", out)
        }
        Command::Jobs(command) => queues::jobs(remote, command, out).await,
        Command::Dead(command) => queues::dead(remote, command, asked, out).await,
        Command::Audit(Audit::List(args)) => audit(remote, args, out).await,
        Command::Audit(Audit::Export(args)) => export(remote, args, out).await,
        Command::Audit(Audit::Verify { tenant }) => {
            let query = query(&[("tenant", tenant.clone())]);
            let path = format!("/v1/audit/verify?{query}");
            let answer = remote.call(Method::GET, &path, None, None).await?;
            verified(&answer, &remote.server, out)
        }
        Command::Report(args) => {
            let report::Asked { question, tenant, since } = args.asked();
            let query = query(&[("tenant", tenant), ("since", Some(asked_for(since)))]);
            let path = format!("/v1/reports/{}?{query}", question.as_str());
            let answer = remote.call(Method::GET, &path, None, None).await?;
            report::print(&answer, &remote.server, out)
        }
        Command::Sweep => {
            let report = remote.call(Method::POST, "/v1/sweep", None, None).await?;
            if out.is_json() {
                return out.print_json(&report);
            }
            out.print(&format!(
                "Swept through {}: {} outcomes dropped, {} keys forgotten, {} abandoned and \
                 held.\n",
                remote.server, report["expired"], report["forgotten"], report["unknown"]
            ))
        }
        Command::Project(ProjectArgs { what: Some(ProjectWhat::Rebuild { view }), .. }) => {
            let path = format!("/v1/views/{}/rebuild", view.as_str());
            let rebuilt = remote.call(Method::POST, &path, None, None).await?;
            if out.is_json() {
                return out.print_json(&rebuilt);
            }
            out.print(&format!(
                "{} was made anew from {} events through {}; generation {} is live.\n",
                view.as_str(),
                rebuilt["events"],
                remote.server,
                rebuilt["generation"]
            ))
        }
        _ => Err(Failure::usage("usage", "this command does not go through a server")),
    }
}

async fn list(remote: &Remote, args: &KeysList, out: &Out) -> Result<(), Failure> {
    let query = query(&[
        ("tenant", args.tenant.clone()),
        ("scope", args.scope.clone()),
        ("state", args.state.map(|state| state.as_str().into())),
        ("after", args.page.after.clone()),
        ("limit", Some(args.page.limit.to_string())),
    ]);
    let page = remote.call(Method::GET, &format!("/v1/records?{query}"), None, None).await?;
    print_page(remote, &page, &RECORD_COLUMNS, out)
}

/// Writes every entry that fits, page by page.
async fn export(remote: &Remote, args: &AuditExport, out: &Out) -> Result<(), Failure> {
    let mut written = Written::begin(args.format, out)?;
    let mut after = None;
    // A while ago is one instant for all pages: it would go on while they are read, and pass the
    // place that they have come to. This machine's clock has to do, for a time that people round.
    let now = At(u64::try_from(Timestamp::now().as_millisecond()).unwrap_or_default());
    let fixed = |moment: Option<Moment>| moment.map(|moment| Moment::At(moment.resolve(now)));
    let filter = AuditWanted {
        from: fixed(args.filter.from),
        to: fixed(args.filter.to),
        ..args.filter.clone()
    };
    loop {
        let page = audit_page(remote, &filter, (after, EXPORT_PAGE)).await?;
        written.add(page["items"].as_array().into_iter().flatten().cloned())?;
        after = page["next"].as_str().map(String::from);
        if after.is_none() {
            return written.end();
        }
    }
}

async fn audit_page(
    remote: &Remote,
    args: &AuditWanted,
    (after, limit): (Option<String>, u16),
) -> Result<Value, Failure> {
    let moment = |moment: Option<Moment>| moment.map(asked_for);
    let query = query(&[
        ("tenant", args.tenant.clone()),
        ("subject", args.subject.clone()),
        ("key", args.key.as_ref().map(|key| key.0.clone())),
        ("action", args.action.clone()),
        ("from", moment(args.from)),
        ("to", moment(args.to)),
        ("after", after),
        ("limit", Some(limit.to_string())),
    ]);
    remote.call(Method::GET, &format!("/v1/audit?{query}"), None, None).await
}

/// The end of the year 9998.
const LAST_WRITTEN_MS: u64 = 253_370_764_800_000;

/// A moment as a parameter.
fn asked_for(moment: Moment) -> String {
    match moment {
        // The last hours of the year 9999 have a number alone.
        Moment::At(at) if at.0 > LAST_WRITTEN_MS => at.0.to_string(),
        Moment::At(at) => rfc3339(at),
        Moment::Ago(ms) => format!("{}s", ms / 1_000),
    }
}

async fn audit(remote: &Remote, args: &AuditList, out: &Out) -> Result<(), Failure> {
    let page = audit_page(remote, &args.filter, (args.page.after.clone(), args.page.limit)).await?;
    let columns = [
        ("NO", "id"),
        ("AT", "at"),
        ("TENANT", "tenant"),
        ("ACTION", "action"),
        ("SUBJECT", "subject"),
        ("KEY HASH", "key_hash"),
        ("FENCE", "fence"),
        ("ACTOR", "actor"),
        ("DETAIL", "detail"),
    ];
    print_page(remote, &page, &columns, out)
}

async fn show(remote: &Remote, key: &Key, out: &Out) -> Result<(), Failure> {
    let path = format!("/v1/records/{}", encoded(&key.to_string()));
    let record = remote.call(Method::GET, &path, None, None).await?;
    if out.is_json() {
        return out.print_json(&record);
    }
    let members = record.as_object().cloned().unwrap_or_default();
    let fields: Vec<(&str, String)> = members
        .iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| (name.as_str(), shown(value)))
        .collect();
    out.print(&out.fields(&fields))
}

async fn resolve(remote: &Remote, args: &KeysResolve, out: &Out) -> Result<(), Failure> {
    keys::check_flags(args)?;
    let body = match args.what {
        ResolveAs::Rerun => json!({ "as": "rerun", "force": args.force }).to_string(),
        ResolveAs::Dead => json!({ "as": "dead", "reason": args.reason }).to_string(),
        ResolveAs::Done => done(&keys::outcome_of(args)?)?,
    };
    let path = format!("/v1/records/{}/resolve", encoded(&args.key.to_string()));
    let actor = by(&args.actor);
    remote.call_with(Method::POST, &path, actor.as_deref(), body).await?;
    keys::told(&args.key, keys::is_now(args.what), out)
}

/// The body that says that a record is done. Its outcome is what others replay: it stays as it was
/// written, because a number that is read and written again may become another.
fn done(outcome: &[u8]) -> Result<String, Failure> {
    #[derive(Serialize)]
    struct Done<'a> {
        r#as: &'a str,
        outcome: &'a RawValue,
    }
    let no_json = |_| {
        let message = "through a server --outcome must be JSON: quote a text";
        Failure::usage("outcome.json", message)
    };
    let outcome = serde_json::from_slice(outcome).map_err(no_json)?;
    serde_json::to_string(&Done { r#as: "done", outcome }).map_err(no_json)
}

/// A name for the audit as a header: UTF-8, as it is. One that no header can carry is refused, or
/// someone else would be on record.
fn named(actor: &str) -> Result<HeaderValue, Failure> {
    HeaderValue::from_bytes(actor.as_bytes()).map_err(|_| {
        let message =
            "--actor has control characters, which a server can't be sent: leave them out";
        Failure::usage("actor", message)
    })
}

fn by(actor: &Actor) -> Option<String> {
    by_hand(actor).actor.map(|actor| actor.to_string())
}

fn print_page(
    remote: &Remote,
    page: &Value,
    columns: &[(&str, &str)],
    out: &Out,
) -> Result<(), Failure> {
    if out.is_json() {
        return out.print_json(page);
    }
    let items = page["items"].as_array().cloned().unwrap_or_default();
    let mut text = format!("Nothing at {} fits.\n", remote.server);
    if !items.is_empty() {
        let headers: Vec<&str> = columns.iter().map(|(header, _)| *header).collect();
        let mut table = out.table(&headers);
        for item in &items {
            table.add_row(columns.iter().map(|(_, member)| Cell::new(shown(&item[member]))));
        }
        text = out.render(&table);
    }
    if let Some(next) = page["next"].as_str() {
        text.push_str(&format!("\nThere are more: go on with --after '{}'\n", plain_line(next)));
    }
    out.print(&text)
}

/// A value for a terminal.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => plain_line(text),
        other => plain_line(&other.to_string()),
    }
}

fn query(parameters: &[(&str, Option<String>)]) -> String {
    let given = parameters.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
    let pairs: Vec<String> =
        given.map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    pairs.join("&")
}

/// Percent-encodes everything but letters, digits and a few signs.
fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push_str(&hex(&[byte]).to_uppercase());
        }
    }
    out
}
