//! The cases of the suite: what a client sees, whichever door it knocks at.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty, Full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::{Answer, open, post, raw, request, send, try_send};
pub(crate) use super::forms::{
    r11_a_form_counts_by_field, r11_an_upload_replays_whatever_its_boundary,
    r11_parameters_of_a_media_type_count_where_they_say_something,
    r11_what_differs_beside_the_body_is_named,
};
use super::strict::ask;
use super::target::Target;

type At = Arc<Target>;

pub(crate) async fn a04_reads_pass_without_a_key_or_an_identity(at: At) {
    for method in ["GET", "HEAD"] {
        let read = Request::builder()
            .method(method)
            .uri("/payments")
            .header("host", "api.example")
            .header("idempotency-key", "k")
            .body(Empty::<Bytes>::new())
            .unwrap();
        assert_eq!(send(at.address, read).await.status, 200, "{method}");
    }
    assert_eq!(post(at.address, "/payments", Some("k"), "{}").await.status, 201);
    assert_eq!(at.app.ran(), 1);
}

pub(crate) async fn a05_keys_are_checked_before_anything_is_looked_up(at: At) {
    let long = "x".repeat(129);
    for bad in ["", "\"\"", "a b", "\"unclosed", "caf\u{e9}", long.as_str()] {
        let mut sent = request("/payments", None, "{}");
        let value = http::HeaderValue::from_bytes(bad.as_bytes()).unwrap();
        sent.headers_mut().insert("idempotency-key", value);
        let refused = send(at.address, sent).await;
        assert_eq!(refused.problem(), (400, "idempotency.key_invalid".into()), "{bad:?}");
    }
    let mut twice = request("/payments", Some("k"), "{}");
    twice.headers_mut().append("idempotency-key", "k".parse().unwrap());
    let refused = send(at.address, twice).await;
    assert_eq!(refused.problem(), (400, "idempotency.key_invalid".into()));
    assert_eq!(at.app.ran(), 0);
}

pub(crate) async fn a05_a_quoted_key_and_a_raw_one_are_the_same(at: At) {
    let raw = post(at.address, "/payments", Some("abc"), "{}").await;
    let quoted = post(at.address, "/payments", Some("\"abc\""), "{}").await;
    assert_eq!((raw.status, quoted.is_replay()), (201, true));
    assert_eq!(at.app.ran(), 1);
}

pub(crate) async fn a06_keys_are_apart_by_caller_method_and_path(at: At) {
    post(at.address, "/things/1", Some("k"), "{}").await;
    post(at.address, "/things/2", Some("k"), "{}").await;
    let mut put = request("/things/1", Some("k"), "{}");
    *put.method_mut() = http::Method::PUT;
    assert!(!send(at.address, put).await.is_replay());
    let mut bob = request("/things/1", Some("k"), "{}");
    bob.headers_mut().insert("authorization", "Bearer bob".parse().unwrap());
    assert!(!send(at.address, bob).await.is_replay());
    assert_eq!(at.app.ran(), 4);
    assert!(post(at.address, "/things/1", Some("k"), "{}").await.is_replay());
}

pub(crate) async fn a07_spelling_does_not_matter(at: At) {
    let first = post(at.address, "/payments", Some("k"), r#"{"a":1,"b":[1,2]}"#).await;
    let again = post(at.address, "/payments", Some("k"), "{ \"b\": [1.0, 2], \"a\":1e0 }").await;
    assert_eq!((again.is_replay(), &again.body), (true, &first.body));
    let query = post(at.address, "/payments?x=1", Some("k"), r#"{"a":1,"b":[1,2]}"#).await;
    assert_eq!(query.problem(), (422, "idempotency.payload_mismatch".into()));
    assert_eq!(at.app.ran(), 1);
}

pub(crate) async fn a08_a_replay_is_the_original_byte_for_byte(at: At) {
    let first = post(at.address, "/payments", Some("k"), r#"{"amount":5}"#).await;
    let again = post(at.address, "/payments", Some("k"), r#"{"amount":5}"#).await;
    assert_eq!((first.status, first.is_replay()), (201, false));
    assert_eq!((again.status, again.is_replay()), (201, true));
    assert_eq!(first.body, again.body);
    assert_eq!(at.app.ran(), 1);
}

pub(crate) async fn a08_only_stored_headers_are_replayed(at: At) {
    let first = post(at.address, "/payments", Some("k"), "{}").await;
    let again = post(at.address, "/payments", Some("k"), "{}").await;
    for name in ["content-type", "location", "etag", "x-correlation-id"] {
        assert!(first.header(name).is_some(), "{name}");
        assert_eq!(first.header(name), again.header(name), "{name}");
    }
    for name in ["set-cookie", "x-ratelimit-remaining", "x-other"] {
        assert!(first.header(name).is_some(), "{name}");
        assert_eq!(again.header(name), None, "{name}");
    }
    assert_eq!(again.header("cache-control"), Some("no-store"));
    assert_ne!(first.header("x-request-id"), again.header("x-request-id"));
}

pub(crate) async fn a09_another_payload_is_a_mismatch(at: At) {
    post(at.address, "/payments", Some("k"), r#"{"amount":5,"to":{"x":1}}"#).await;
    let other = post(at.address, "/payments", Some("k"), r#"{"amount":6,"to":{"x":1}}"#).await;
    assert_eq!(other.problem(), (422, "idempotency.payload_mismatch".into()));
    assert_eq!(other.json()["differs"], serde_json::json!(["/amount"]));
    assert_eq!(other.json()["key_advice"], "rotate");
    assert!(
        post(at.address, "/payments", Some("k"), r#"{"amount":5,"to":{"x":1}}"#).await.is_replay()
    );
    assert_eq!(at.app.ran(), 1);
}

pub(crate) async fn a09_a_mismatch_is_told_while_the_first_runs(at: At) {
    let first = later(&at, "/slow", "k", "{}");
    at.app.started().await;
    let other = post(at.address, "/slow", Some("k"), r#"{"other":1}"#).await;
    assert_eq!(other.problem(), (422, "idempotency.payload_mismatch".into()));
    at.app.go_on();
    assert_eq!(first.await.unwrap().status, 200);
}

pub(crate) async fn a17_what_was_not_stored_runs_again(at: At) {
    for (status, is_stored) in [
        (200, true),
        (302, true),
        (400, true),
        (409, true),
        (412, true),
        (422, true),
        (401, false),
        (403, false),
        // Nobody wrote that there is something at these paths.
        (404, false),
        (405, false),
        (408, false),
        (425, false),
        (429, false),
        (500, false),
        (502, false),
        (503, false),
    ] {
        let path = format!("/status/{status}");
        let first = post(at.address, &path, Some("k"), "{}").await;
        let again = post(at.address, &path, Some("k"), "{}").await;
        assert_eq!((first.status, again.status), (status, status));
        assert_eq!(again.is_replay(), is_stored, "{status}");
        assert_eq!(first.body == again.body, is_stored, "{status}");
    }
}

pub(crate) async fn a25_a_request_has_an_id(at: At) {
    let made = post(at.address, "/echo", Some("k"), "{}").await;
    let id = made.header("x-request-id").unwrap();
    assert!(id.len() >= 16, "{id}");
    assert_eq!(made.json()["headers"]["x-request-id"][0], id);
    let mut sent = request("/echo", None, "{}");
    sent.headers_mut().insert("x-request-id", "mine-1".parse().unwrap());
    let kept = send(at.address, sent).await;
    assert_eq!(kept.header("x-request-id"), Some("mine-1"));
    assert_eq!(kept.json()["headers"]["x-request-id"][0], "mine-1");
    let mut bad = request("/payments", Some(""), "{}");
    bad.headers_mut().insert("x-request-id", "mine-2".parse().unwrap());
    let refused = send(at.address, bad).await;
    assert_eq!(refused.json()["instance"], "urn:request:mine-2");
}

pub(crate) async fn a25_a_replay_tells_the_correlation_id_of_the_original(at: At) {
    // This API says nothing of it: the first answer and its replay do all the same.
    for id in ["first", "second"] {
        let mut sent = request("/status/201", Some("k"), "{}");
        sent.headers_mut().insert("x-correlation-id", id.parse().unwrap());
        let answer = send(at.address, sent).await;
        assert_eq!(answer.header("x-correlation-id"), Some("first"), "{id}");
        assert_eq!(answer.is_replay(), id == "second");
    }
}

pub(crate) async fn fifty_duplicates_at_once_are_one_execution(at: At) {
    let all: Vec<_> = (0..50).map(|_| later(&at, "/slow", "k", "{}")).collect();
    at.app.started().await;
    at.app.go_on();
    let mut originals = 0;
    for answer in all {
        let answer = answer.await.unwrap();
        assert_eq!((answer.status, &answer.body[..]), (200, &b"slow 1"[..]));
        originals += usize::from(!answer.is_replay());
    }
    assert_eq!((originals, at.app.ran()), (1, 1));
}

pub(crate) async fn ruling_5_a_duplicate_is_in_flight_when_its_wait_is_over(at: At) {
    let first = later(&at, "/slow", "k", "{}");
    at.app.started().await;
    let busy = post(at.address, "/slow", Some("k"), "{}").await;
    assert_eq!(busy.problem(), (409, "idempotency.in_flight".into()));
    assert!(busy.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    assert_eq!(busy.json()["key_advice"], "reuse");
    at.app.go_on();
    assert_eq!(first.await.unwrap().status, 200);
    assert!(post(at.address, "/slow", Some("k"), "{}").await.is_replay());
}

pub(crate) async fn no_identity_no_claim(at: At) {
    let mut nobody = request("/payments", Some("k"), "{}");
    nobody.headers_mut().remove("authorization");
    let refused = send(at.address, nobody).await;
    assert_eq!(refused.problem(), (401, "auth.required".into()));
    assert_eq!(at.app.ran(), 0);
}

pub(crate) async fn without_a_key_nothing_is_remembered(at: At) {
    for n in 1..=2 {
        let mut nobody = request("/payments", None, "{}");
        nobody.headers_mut().remove("authorization");
        let answer = send(at.address, nobody).await;
        assert_eq!((answer.status, answer.is_replay()), (201, false));
        assert_eq!(at.app.ran(), n);
    }
}

pub(crate) async fn what_only_we_may_say_is_removed_both_ways(at: At) {
    for key in [None, Some("k")] {
        let mut sent = request("/echo", key, "{}");
        for name in ["onceward-fence", "onceward-permit", "idempotency-replayed", "x-duplicate-of"]
        {
            sent.headers_mut().insert(name, "7777777".parse().unwrap());
        }
        let seen = send(at.address, sent).await;
        assert!(!seen.json()["headers"].to_string().contains("7777777"), "{key:?}");
    }
    for key in [None, Some("l")] {
        let answer = post(at.address, "/payments", key, "{}").await;
        let ours = [
            "onceward-forged",
            "idempotency-replayed",
            "x-idempotency-replay",
            "onceward_fence",
            "idempotency_replayed",
        ];
        assert_eq!(ours.map(|name| answer.header(name)), [None; 5], "{key:?}");
    }
}

pub(crate) async fn upstream_sees_key_fence_attempt_and_request_id(at: At) {
    let seen = post(at.address, "/echo", Some("\"k 1\"".replace(' ', "-").as_str()), "{}").await;
    let headers = &seen.json()["headers"];
    assert_eq!(headers["idempotency-key"], serde_json::json!(["k-1"]));
    assert_eq!(headers["onceward-attempt"], serde_json::json!(["1"]));
    assert!(headers["onceward-fence"][0].as_str().unwrap().parse::<u64>().unwrap() > 0);
    assert_eq!(headers["authorization"], serde_json::json!(["Bearer alice"]));
    assert_eq!(headers["x-request-id"][0], seen.header("x-request-id").unwrap());
}

pub(crate) async fn binary_chunked_and_compressed_answers_are_replayed(at: At) {
    for path in ["/binary", "/chunked", "/gzip"] {
        let first = post(at.address, path, Some("k"), "{}").await;
        let again = post(at.address, path, Some("k"), "{}").await;
        assert_eq!((first.status, again.is_replay()), (200, true), "{path}");
        assert_eq!(first.body, again.body, "{path}");
        for name in ["content-type", "content-encoding"] {
            assert_eq!(first.header(name), again.header(name), "{path} {name}");
        }
    }
    assert_eq!(at.app.ran(), 3);
}

pub(crate) async fn a_chunked_request_is_the_same_as_one_with_a_length(at: At) {
    let first = post(at.address, "/payments", Some("k"), r#"{"a":1}"#).await;
    let chunked = "POST /payments HTTP/1.1\r\nhost: x\r\nauthorization: Bearer alice\r\n\
                   content-type: application/json\r\nidempotency-key: k\r\nconnection: close\r\n\
                   transfer-encoding: chunked\r\n\r\n3\r\n{\"a\r\n4;x=y\r\n\":1}\r\n0\r\n\r\n";
    let again = raw(at.address, chunked.as_bytes()).await;
    assert!(again.starts_with("HTTP/1.1 201"), "{again}");
    assert!(again.contains("idempotency-replayed: true"), "{again}");
    assert!(again.ends_with(std::str::from_utf8(&first.body).unwrap()), "{again}");
}

pub(crate) async fn a_large_answer_is_passed_on_once(at: At) {
    let first = post(at.address, "/large/5000", Some("k"), "{}").await;
    assert_eq!((first.status, first.body.len()), (200, 5_000));
    assert_eq!(first.header("idempotency-stored"), Some("false"));
    let again = post(at.address, "/large/5000", Some("k"), "{}").await;
    assert_eq!(again.problem(), (409, "idempotency.response_not_stored".into()));
    assert_eq!(at.app.ran(), 1);
    let fits = post(at.address, "/large/1000", Some("k"), "{}").await;
    assert_eq!((fits.status, fits.header("idempotency-stored")), (200, None));
    assert!(post(at.address, "/large/1000", Some("k"), "{}").await.is_replay());
}

pub(crate) async fn a_streamed_answer_is_passed_on_live(at: At) {
    let response = open(at.address, request("/events", Some("k"), "{}")).await.unwrap();
    assert_eq!(response.headers()["idempotency-stored"], "false");
    let mut body = response.into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(&first[..], b"data: first 1\n\n", "before the second is there");
    // The key is done while its answer still flows.
    let again = post(at.address, "/events", Some("k"), "{}").await;
    assert_eq!(again.problem(), (409, "idempotency.response_not_stored".into()));
    at.app.started().await;
    at.app.go_on();
    assert_eq!(&body.collect().await.unwrap().to_bytes()[..], b"data: second\n\n");
    assert_eq!(at.app.ran(), 1);
}

pub(crate) async fn a_body_over_the_bound_is_refused_and_leaves_nothing(at: At) {
    for size in [1_001, 3_000_000] {
        let refused = post(at.address, "/payments", Some("k"), &"x".repeat(size)).await;
        assert_eq!(refused.problem(), (413, "body.too_large".into()), "{size}");
    }
    assert_eq!(at.app.ran(), 0);
    assert_eq!(post(at.address, "/payments", Some("k"), "{}").await.status, 201);
}

pub(crate) async fn bodies_without_a_canonical_form_are_refused(at: At) {
    let deep = "[".repeat(100_000);
    for bad in [r#"{"a":1,"a":2}"#, r#"{"a":1e400}"#, r#""\ud800""#, &deep] {
        let refused = post(at.address, "/payments", Some("k"), bad).await;
        assert_eq!(refused.problem(), (400, "body.not_canonical".into()));
    }
    assert_eq!(at.app.ran(), 0);
    // What is not JSON at all is left to the handler.
    assert_eq!(post(at.address, "/payments", Some("k"), "not json").await.status, 201);
}

pub(crate) async fn i03_a_client_that_leaves_finds_its_answer_later(at: At) {
    let gone = tokio::spawn(try_send(at.address, request("/slow", Some("k"), "{}")));
    at.app.started().await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    at.app.go_on();
    let answer = post(at.address, "/slow", Some("k"), "{}").await;
    assert_eq!((answer.status, &answer.body[..]), (200, &b"slow 1"[..]));
    assert!(answer.is_replay());
    assert_eq!(at.app.ran(), 1);
}

pub(crate) async fn i19_who_leaves_while_waiting_leaves_no_trace(at: At) {
    let first = later(&at, "/slow", "k", "{}");
    at.app.started().await;
    for _ in 0..20 {
        let mut stream = TcpStream::connect(at.address).await.unwrap();
        let head = "POST /slow HTTP/1.1\r\nhost: x\r\nauthorization: Bearer alice\r\n\
                    content-type: application/json\r\nidempotency-key: k\r\n\
                    content-length: 2\r\n\r\n{}";
        stream.write_all(head.as_bytes()).await.unwrap();
    }
    at.app.go_on();
    assert_eq!(&first.await.unwrap().body[..], b"slow 1");
    assert!(post(at.address, "/slow", Some("k"), "{}").await.is_replay());
    assert_eq!(at.app.ran(), 1);
}

pub(crate) async fn a_reset_without_an_answer_may_be_retried(at: At) {
    for attempt in 1..=2 {
        let failed = post(at.address, "/panics", Some("k"), "{}").await;
        assert_eq!(failed.problem(), (502, "upstream.failed".into()));
        assert_eq!(at.app.runs().last().unwrap().attempt, attempt);
    }
    let runs = at.app.runs();
    assert_eq!(runs.len(), 2);
    assert!(runs[1].fence > runs[0].fence, "i05: {runs:?}");
}

pub(crate) async fn half_an_answer_is_no_answer(at: At) {
    let failed = post(at.address, "/half", Some("k"), "{}").await;
    assert_eq!(failed.problem(), (502, "upstream.failed".into()));
    assert_eq!(failed.json()["retryable"], true);
    post(at.address, "/half", Some("k"), "{}").await;
    let runs = at.app.runs();
    assert_eq!((runs.len(), runs[1].attempt), (2, 2));
    assert!(runs[1].fence > runs[0].fence, "i05: {runs:?}");
}

pub(crate) async fn ruling_6_under_hold_an_unknown_outcome_stays_unknown(at: At) {
    for path in ["/panics", "/half"] {
        let failed = post(at.address, path, Some("k"), "{}").await;
        assert_eq!(failed.problem(), (502, "upstream.failed".into()), "{path}");
        for _ in 0..2 {
            let unknown = post(at.address, path, Some("k"), "{}").await;
            assert_eq!(unknown.problem(), (409, "idempotency.outcome_unknown".into()), "{path}");
        }
    }
    assert_eq!(at.app.ran(), 2, "once for each key");
}

pub(crate) async fn a_lease_is_renewed_while_the_work_goes_on(at: At) {
    let first = later(&at, "/slow", "k", "{}");
    at.app.started().await;
    // sleeps because a lease must pass, several times over, on the store's own clock
    tokio::time::sleep(Duration::from_millis(2_400)).await;
    let busy = post(at.address, "/slow", Some("k"), "{}").await;
    assert_eq!(busy.problem(), (409, "idempotency.in_flight".into()));
    at.app.go_on();
    assert_eq!(first.await.unwrap().status, 200);
    assert_eq!(at.app.ran(), 1);
}

pub(crate) async fn expect_100_continue_is_answered(at: At) {
    for (path, key) in [("/payments", "idempotency-key: k\r\n"), ("/payments", "")] {
        let mut stream = TcpStream::connect(at.address).await.unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer alice\r\n{key}\
             content-length: 2\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut go_on = [0; 25];
        stream.read_exact(&mut go_on).await.unwrap();
        assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
        stream.write_all(b"{}").await.unwrap();
        let answer = super::client::read_to_close(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    }
}

pub(crate) async fn peer_d1_an_upgrade_that_is_offered_is_ignored(at: At) {
    let offer = "POST /payments HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer alice\r\n\
                 Content-Type: application/json\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\
                 Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\
                 \r\n\r\n{}";
    for is_replay in [false, true] {
        let answers = ask(at.address, offer.as_bytes(), 1).await.unwrap();
        let answer = &answers.all[0];
        assert_eq!(answer.status(), 201, "{answer:?}");
        assert_eq!(answer.all("idempotency-replayed").len(), usize::from(is_replay));
    }
    assert_eq!(at.app.ran(), 1);
}

pub(crate) async fn redirects_are_not_followed(at: At) {
    let first = post(at.address, "/status/307", Some("k"), "{}").await;
    assert_eq!(first.status, 307);
    assert!(post(at.address, "/status/307", Some("k"), "{}").await.is_replay());
    assert_eq!(at.app.ran(), 1);
}

/// A POST whose answer is awaited later.
fn later(at: &At, path: &str, key: &str, body: &str) -> tokio::task::JoinHandle<Answer> {
    let (address, sent) = (at.address, request(path, Some(key), body));
    tokio::spawn(send::<Full<Bytes>>(address, sent))
}
