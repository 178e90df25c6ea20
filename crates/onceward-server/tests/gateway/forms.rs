//! Forms and uploads: compared by field and by part, at either door (R11, R12, A07).

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};

use super::client::{Answer, post, request, send};
use super::target::{Gateway, Target, command, folder, serve};
use super::upstream::App;

type At = Arc<Target>;

const FORM: &str = "application/x-www-form-urlencoded";

/// A POST by alice of a body with this type.
fn typed(path: &str, media_type: &str, body: &[u8]) -> Request<Full<Bytes>> {
    let mut sent = request(path, Some("k"), "");
    sent.headers_mut().insert("content-type", media_type.parse().unwrap());
    *sent.body_mut() = Full::new(Bytes::copy_from_slice(body));
    sent
}

async fn form(to: SocketAddr, path: &str, body: &str) -> Answer {
    send(to, typed(path, FORM, body.as_bytes())).await
}

/// An upload as HTTP clients write it: a field, then a file.
async fn upload(to: SocketAddr, boundary: &str, amount: &str, file: (&str, &[u8])) -> Answer {
    let (name, content) = file;
    let head = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"amount\"\r\n\r\n{amount}\r\n\
         --{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    );
    let tail = format!("\r\n--{boundary}--\r\n");
    let body = [head.as_bytes(), content, tail.as_bytes()].concat();
    let media_type = format!("multipart/form-data; boundary={boundary}");
    send(to, typed("/payments", &media_type, &body)).await
}

/// What a mismatch says: the pointers, and the words for people.
#[track_caller]
fn differs(answer: &Answer) -> (Value, Value) {
    assert_eq!(answer.problem(), (422, "idempotency.payload_mismatch".into()));
    let problem = answer.json();
    (problem["differs"].clone(), problem["differs_text"].clone())
}

pub(crate) async fn r11_a_form_counts_by_field(at: At) {
    let first = form(at.address, "/payments", "amount=5&to=bob+b&tag=x&tag=y").await;
    assert_eq!(first.status, 201);
    for lawful in ["tag=x&to=bob%20b&amount=5&tag=y", "amount=%35&tag=x&tag=y&to=bob%20%62"] {
        let again = form(at.address, "/payments", lawful).await;
        assert_eq!((again.is_replay(), &again.body), (true, &first.body), "{lawful}");
    }
    for (other, pointers, words) in [
        ("amount=6&to=bob+b&tag=x&tag=y", json!(["/amount"]), "the field amount"),
        ("amount=5&to=bob+b&tag=y&tag=x", json!(["/tag"]), "the field tag"),
        ("amount=5&tag=x&tag=y", json!(["/to"]), "the field to"),
        ("amount=5&to=bob%2Bb&tag=x&tag=y", json!(["/to"]), "the field to"),
        ("amount=5&to=bob+b&tag=x&tag=y&%", json!([""]), "the body"),
    ] {
        let (found, text) = differs(&form(at.address, "/payments", other).await);
        if other.ends_with('%') {
            // It is no form: what it was is gone.
            assert!(found.as_array().unwrap().contains(&json!("")), "{found}");
        } else {
            assert_eq!((found, text), (pointers, json!(words)), "{other}");
        }
    }
    assert_eq!(at.app.ran(), 1);
}

pub(crate) async fn r11_an_upload_replays_whatever_its_boundary(at: At) {
    let file: Vec<u8> = (0..60_000_u32).map(|at| (at * 7 % 251) as u8).collect();
    let first = upload(at.address, "d41d8cd98f00b204", "5", ("scan.pdf", &file)).await;
    assert_eq!((first.status, first.is_replay()), (201, false));
    for boundary in ["e9800998ecf8427e", "----WebKitFormBoundary7MA4YWxkTrZu0gW", "x"] {
        let again = upload(at.address, boundary, "5", ("scan.pdf", &file)).await;
        assert_eq!((again.is_replay(), &again.body), (true, &first.body), "{boundary}");
    }
    let mut other = file.clone();
    other[59_999] ^= 1;
    let mismatch = upload(at.address, "y", "5", ("scan.pdf", &other)).await;
    assert_eq!(differs(&mismatch), (json!(["/file"]), json!("the field file")));
    let mismatch = upload(at.address, "y", "5", ("scan2.pdf", &file)).await;
    assert_eq!(differs(&mismatch), (json!(["/file"]), json!("the field file")));
    let mismatch = upload(at.address, "y", "6", ("scan.pdf", &other)).await;
    let text = json!("the field amount and the field file");
    assert_eq!(differs(&mismatch), (json!(["/amount", "/file"]), text));
    assert_eq!(at.app.ran(), 1);
}

pub(crate) async fn r11_what_differs_beside_the_body_is_named(at: At) {
    let body = r#"{"amount":5}"#;
    post(at.address, "/payments?page=1&size=2", Some("k"), body).await;
    let other = post(at.address, "/payments?page=2&size=2", Some("k"), body).await;
    assert_eq!(differs(&other), (json!(["?page"]), json!("the query field page")));
    let other = post(at.address, "/payments?page=1", Some("k"), body).await;
    assert_eq!(differs(&other), (json!(["?size"]), json!("the query field size")));
    let other = post(at.address, "/payments?size=2&page=1", Some("k"), body).await;
    assert_eq!(differs(&other), (json!(["?"]), json!("the query")));
    let other = post(at.address, "/payments?page=1&size=3", Some("k"), r#"{"amount":6}"#).await;
    let text = json!("the field amount and the query field size");
    assert_eq!(differs(&other), (json!(["/amount", "?size"]), text));
    let typed = typed("/payments?page=1&size=2", "application/vnd.a+json", body.as_bytes());
    let other = send(at.address, typed).await;
    assert_eq!(differs(&other), (json!([""]), json!("the media type of the body")));
    assert_eq!(at.app.ran(), 1);
}

pub(crate) async fn r11_parameters_of_a_media_type_count_where_they_say_something(at: At) {
    let sent = |media_type: &'static str, body: &'static str| {
        send(at.address, typed("/payments", media_type, body.as_bytes()))
    };
    // JSON has one charset, whatever is said of it.
    assert_eq!(sent("application/json; charset=utf-8", "{}").await.status, 201);
    assert!(sent("application/json", "{}").await.is_replay());
    let versioned = sent("application/json; v=2", "{}").await;
    assert_eq!(differs(&versioned), (json!([""]), json!("the media type of the body")));
    let latin = format!("{FORM}; charset=latin1");
    let (path, body) = ("/things/1", &b"a=%E9"[..]);
    assert_eq!(send(at.address, typed(path, &latin, body)).await.status, 201);
    assert!(send(at.address, typed(path, &latin.replace("; c", ";C"), body)).await.is_replay());
    let other = send(at.address, typed(path, FORM, body)).await;
    assert_eq!(differs(&other), (json!([""]), json!("the media type of the body")));
    assert_eq!(at.app.ran(), 2);
}

/// The gateway in front of an API, with a file.
async fn with_file(name: &str, file: &str) -> (Gateway, Arc<App>) {
    let (folder, app) = (folder(name), App::new());
    std::fs::write(folder.join("onceward.toml"), file).unwrap();
    (Gateway::start(&folder, serve(app.router()).await, &[]), app)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r11_curl_may_upload_the_same_file_twice() {
    let (gateway, app) = with_file("curl_upload", "").await;
    let folder = folder("curl_files");
    let (one, other) = (folder.join("one"), folder.join("other"));
    std::fs::write(&one, "one\r\n".repeat(9_000)).unwrap();
    std::fs::write(&other, "other").unwrap();
    let address = gateway.listen;
    let upload = |file: &std::path::Path| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--include", "--max-time", "60"])
            .args(["-H", "Authorization: Bearer alice", "-H", "Idempotency-Key: k"])
            .args(["-F", "amount=5", "-F"])
            .arg(format!("file=@{};filename=scan.txt", file.display()))
            .arg(format!("http://{address}/payments"));
        async {
            let output = tokio::task::spawn_blocking(move || curl.output()).await.unwrap().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap().to_ascii_lowercase()
        }
    };
    let first = upload(&one).await;
    assert!(first.contains("http/1.1 201 ") && !first.contains("idempotency-replayed"), "{first}");
    let again = upload(&one).await;
    assert!(again.contains("http/1.1 201 ") && again.contains("idempotency-replayed: true"));
    let mismatch = upload(&other).await;
    assert!(mismatch.contains("http/1.1 422 "), "{mismatch}");
    assert!(mismatch.contains(r#""differs":["/file"],"differs_text":"the field file""#));
    assert_eq!(app.ran(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r11_a_route_says_how_its_bodies_are_compared() {
    let route = |path: &str, body: &str| {
        format!("[[route]]\nmatch = \"POST {path}\"\nfingerprint = {{ {body} }}\n")
    };
    let file = [
        route("/things/bytes", "body = \"bytes\""),
        route("/things/form", "body = \"form\""),
        route("/things/json", "body = \"json\""),
        route("/things/multipart", "body = \"multipart\""),
        route("/things/ignoring", "ignore = [\"at\", \"/a~1b\"], arrays = \"unordered\""),
    ];
    let (gateway, app) = with_file("body_forms", &file.concat()).await;
    let (plain, json, none) = ("text/plain", "application/json", "");
    let upload = "multipart/form-data; boundary=";
    let part = |boundary: &str| {
        let disposition = "Content-Disposition: form-data; name=a";
        format!("--{boundary}\r\n{disposition}\r\n\r\n1\r\n--{boundary}--")
    };
    let (x, y) = (&*part("x"), &*part("y"));
    let (mixed_x, mixed_y) = ("multipart/mixed; boundary=x", "multipart/mixed; boundary=y");
    for (name, first, second, same) in [
        ("bytes", (FORM, "a=1&b=2"), (FORM, "b=2&a=1"), false),
        ("bytes", (json, "{\"a\":1}"), (json, "{ \"a\":1}"), false),
        ("form", (FORM, "a=1&b=2"), (FORM, "b=2&a=1"), true),
        ("form", (plain, "a=1&b=2"), (plain, "b=2&a=1"), true),
        ("form", (none, "a=1&b=2"), (none, "b=2&a=1"), true),
        // What calls itself something else is never read as a form.
        ("form", (json, "{\"a\":\"1+1\"}"), (json, "{\"a\":\"1%201\"}"), false),
        ("form", (json, "{\"a\":1}"), (json, "{ \"a\":1}"), false),
        ("form", (FORM, "a=%4"), (FORM, "a=%4"), true),
        ("form", (FORM, "a=%4&b"), (FORM, "b&a=%4"), false),
        ("json", (plain, "{\"a\":1}"), (plain, "{ \"a\":1}"), true),
        ("json", (FORM, "a=1&b=2"), (FORM, "b=2&a=1"), false),
        ("multipart", (mixed_x, x), (mixed_y, y), true),
        ("multipart", (FORM, "a=1&b=2"), (FORM, "b=2&a=1"), false),
        ("ignoring", (FORM, "a=1&a=2&at=3&a/b=4"), (FORM, "a=2&at=5&a=1"), true),
        ("ignoring", (FORM, "a=1&a=2"), (FORM, "a=1"), false),
    ] {
        let path = format!("/things/{name}");
        let key = format!("{first:?}{second:?}").len().to_string() + first.1 + second.0;
        let key: String = key.bytes().map(|byte| format!("{byte:x}")).take(60).collect();
        let sent = async |(media_type, body): (&str, &str)| {
            let mut sent = typed(&path, plain, body.as_bytes());
            sent.headers_mut().insert("idempotency-key", key.parse().unwrap());
            match media_type {
                "" => drop(sent.headers_mut().remove("content-type")),
                other => drop(sent.headers_mut().insert("content-type", other.parse().unwrap())),
            }
            send(gateway.listen, sent).await
        };
        assert_eq!(sent(first).await.status, 201, "{name} {first:?}");
        let second_answer = sent(second).await;
        let expected = if same { 201 } else { 422 };
        assert_eq!(second_answer.status, expected, "{name} {first:?} {second:?}");
        assert_eq!(second_answer.is_replay(), same, "{name} {first:?} {second:?}");
    }
    let ran = app.ran();
    let broken = |boundary: &str| part(boundary).replace("\r\n", "\n");
    for (boundary, expected) in [("x", 201), ("x", 201), ("y", 422)] {
        let sent =
            typed("/things/multipart", &format!("{upload}{boundary}"), broken(boundary).as_bytes());
        assert_eq!(send(gateway.listen, sent).await.status, expected, "compared as bytes");
    }
    assert_eq!(app.ran(), ran + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r12_a_form_is_kept_in_full_by_field() {
    let file = "[[route]]\nmatch = \"POST /payments\"\nkeep_payload = \"full\"\n\
                [identity]\nsource = \"single\"\n";
    let (at, app) = (folder("kept_form"), App::new());
    std::fs::write(at.join("onceward.toml"), file).unwrap();
    let gateway = Gateway::start(&at, serve(app.router()).await, &[]);
    form(gateway.listen, "/payments?page=1", "amount=5&tag=x&tag=y").await;
    let other = form(gateway.listen, "/payments?page=1", "amount=5&tag=x&tag=z").await;
    assert_eq!(differs(&other), (json!(["/tag"]), json!("the field tag")));
    let run = |arguments: &[&str]| -> Value {
        let output = command(&at, arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let listed = run(&["keys", "list", "--json"]);
    let key = listed["items"][0]["key"].as_str().unwrap();
    let shown = run(&["keys", "show", key, "--json"]);
    assert_eq!(shown["payload"]["kept"], "full");
    assert_eq!(shown["payload"]["body"]["text"], r#"{"amount":"5","tag":["x","y"]}"#);
    assert_eq!(shown["payload"]["query"], "page=1");
}
