//! The process: how it starts, what it says when it can't, and how it ends.

use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use tokio::net::TcpListener;

use super::client::{post, request, send, try_send};
use super::target::{Gateway, Setup, command, folder, serve};
use super::upstream::App;

/// Runs the binary to its end: exit code and what it said on standard error.
fn ran(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let output = command(folder, arguments).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

async fn api() -> (SocketAddr, std::sync::Arc<App>) {
    let app = App::new();
    (serve(app.router()).await, app)
}

#[test]
fn wrong_usage_is_exit_2_and_says_what_to_do() {
    let folder = folder("usage");
    for (arguments, told) in [
        (&["serve"][..], "--upstream"),
        (&["serve", "--upstream", "127.0.0.1:1"], "http://"),
        (&["serve", "--upstream", "ftp://x"], "http://"),
        (&["serve", "--upstream", "http://x", "--listen", "nowhere"], "--listen"),
        (&["serve", "--upstream", "http://x", "--identity", "header"], "--tenant-header"),
        (&["serve", "--upstream", "http://x", "--lease", "1"], "30s"),
        (&["serve", "--upstream", "http://x", "--lease", "50ms"], "lease"),
        (&["serve", "--upstream", "http://x", "--lease", "10h"], "error: retain_errors: \"4h\""),
        (&["serve", "--upstream", "http://u:hunter2@x/"], "--upstream: a URL with a login"),
        (&["serve", "--upstream", "http://x/#hunter2"], "--upstream: a URL with a fragment"),
        (&["serve", "--upstream", "http://x", "--store", "redis://x"], "sqlite:"),
        (&["serve", "--upstream", "http://x", "--tls-cert", "c.pem"], "--tls-key"),
        (
            &["serve", "--upstream", "http://x", "--tls-cert", "none.pem", "--tls-key", "none.pem"],
            "none.pem",
        ),
    ] {
        let (code, said) = ran(&folder, arguments);
        assert_eq!(code, 2, "{arguments:?}: {said}");
        assert!(said.contains(told), "{arguments:?}: {said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_taken_is_exit_1_and_says_so() {
    let folder = folder("taken");
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for flag in ["--listen", "--admin"] {
        let other = if flag == "--listen" { "--admin" } else { "--listen" };
        let arguments = ["serve", "--upstream", "http://x", flag, &address, other, "127.0.0.1:0"];
        let (code, said) = ran(&folder, &arguments);
        assert_eq!(code, 1, "{said}");
        assert!(said.contains(flag) && said.contains(&address), "{said}");
    }
    let (upstream, _app) = api().await;
    let _first = Gateway::start(&folder, upstream, &[]);
    let second =
        ["serve", "--upstream", "http://x", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let ready = std::fs::read_to_string(folder.join("ready.json")).unwrap();
    let (code, said) = ran(&folder, &[&second[..], &["--ready-file", "ready.json"]].concat());
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("onceward.db"), "{said}");
    // The first one runs on, and whoever looks for it finds it.
    assert_eq!(std::fs::read_to_string(folder.join("ready.json")).unwrap(), ready);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_control_listener_answers_and_variables_stand_in_for_flags() {
    let folder = folder("variables");
    let (upstream, app) = api().await;
    let mut command = command(&folder, &["serve"]);
    command
        .env("ONCEWARD_UPSTREAM", format!("http://{upstream}/things"))
        .env("ONCEWARD_LISTEN", "127.0.0.1:0")
        .env("ONCEWARD_ADMIN", "127.0.0.1:0")
        .env("ONCEWARD_STORE", "memory:")
        .env("ONCEWARD_IDENTITY", "header")
        .env("ONCEWARD_TENANT_HEADER", "x-tenant")
        .env("ONCEWARD_CALLER_HEADER", "x-caller");
    let gateway = Gateway::spawn(&folder, command);
    let health = Request::get("/healthz").header("host", "x").body(Empty::new()).unwrap();
    let health = send::<Empty<Bytes>>(gateway.admin, health).await;
    assert_eq!((health.status, &health.json()["status"]), (200, &"ok".into()));
    assert_eq!(health.json()["store"], "memory");
    let mut sent = request("/7", Some("k"), "{}");
    sent.headers_mut().insert("x-tenant", "acme".parse().unwrap());
    assert_eq!(send(gateway.listen, sent.clone()).await.problem().0, 401, "no caller");
    sent.headers_mut().insert("x-caller", "ada".parse().unwrap());
    // The client can't have its proxy's word removed.
    sent.headers_mut().insert("connection", "x-caller".parse().unwrap());
    assert_eq!(send(gateway.listen, sent.clone()).await.status, 201);
    sent.headers_mut().insert("x-caller", "bob".parse().unwrap());
    assert!(!send(gateway.listen, sent).await.is_replay(), "another caller");
    assert_eq!(app.ran(), 2, "the path of --upstream goes in front");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_lets_what_runs_come_to_its_end() {
    let (folder, (upstream, app)) = (folder("drain"), api().await);
    let gateway = Gateway::start(&folder, upstream, &[]);
    let address = gateway.listen;
    let running = tokio::spawn(try_send(address, request("/slow", Some("k"), "{}")));
    app.started().await;
    let gone = tokio::spawn(try_send(address, request("/slow", Some("gone"), "{}")));
    app.started().await;
    gone.abort();
    let waiting = tokio::spawn(try_send(address, request("/slow", Some("k"), "{}")));
    gateway.terminate();
    // A duplicate stops waiting: what it waits for may take long.
    let waited = waiting.await.unwrap();
    if let Some(waited) = &waited {
        assert_eq!(waited.problem(), (409, "idempotency.in_flight".into()));
    }
    // Nobody is let in any more.
    while try_send(address, request("/payments", Some("new"), "{}")).await.is_some() {}
    // The control API tells so as long as something runs.
    let ready = Request::get("/readyz").body(Empty::<Bytes>::new()).unwrap();
    let ready = send(gateway.admin, ready).await;
    assert_eq!((ready.status, ready.json()["status"].as_str()), (503, Some("draining")));
    app.go_on();
    app.go_on();
    let answer = running.await.unwrap().unwrap();
    assert_eq!(answer.status, 200);
    assert_eq!(gateway.ended(), (Some(0), String::new()));
    // What ended is recorded, also for the one who left.
    let again = Gateway::start(&folder, upstream, &[]);
    for key in ["k", "gone"] {
        assert!(post(again.listen, "/slow", Some(key), "{}").await.is_replay(), "{key}");
    }
    assert_eq!(app.runs().iter().filter(|run| run.key != "new").count(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_end_in_time_is_given_up_with_a_higher_fence_for_the_next() {
    for (name, flags, signals) in
        [("drain_late", &["--drain-timeout=200ms"][..], 1), ("drain_hurry", &[], 2)]
    {
        let (folder, (upstream, app)) = (folder(name), api().await);
        let flags: Vec<String> = flags.iter().map(ToString::to_string).collect();
        let gateway = Gateway::start(&folder, upstream, &flags);
        let cut = tokio::spawn(try_send(gateway.listen, request("/slow", Some("k"), "{}")));
        app.started().await;
        for _ in 0..signals {
            gateway.terminate();
        }
        assert_eq!(gateway.ended(), (Some(0), String::new()));
        if let Some(answer) = cut.await.unwrap() {
            assert_eq!(answer.problem(), (502, "upstream.failed".into()));
        }
        let again = Gateway::start(&folder, upstream, &Setup::default().flags());
        let retried = tokio::spawn(try_send(again.listen, request("/slow", Some("k"), "{}")));
        app.started().await;
        app.go_on();
        app.go_on();
        // Long before the first lease would have ended.
        assert_eq!(retried.await.unwrap().unwrap().status, 200);
        let runs = app.runs();
        assert!(runs[1].fence > runs[0].fence && runs[1].attempt == 2, "{runs:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_comes_in_and_goes_out() {
    let pem = |name: &str| format!("{}/tests/gateway/tls/{name}.pem", env!("CARGO_MANIFEST_DIR"));
    let (upstream, app) = api().await;
    let flags = [format!("--tls-cert={}", pem("cert")), format!("--tls-key={}", pem("key"))];
    let inner = Gateway::start(&folder("tls_inner"), upstream, &flags);
    let url = format!("https://localhost:{}", inner.listen.port());
    let folder = folder("tls_outer");
    let mut trusting = command(&folder, &["serve", "--upstream", &url]);
    trusting.args(["--listen=127.0.0.1:0", "--admin=127.0.0.1:0"]);
    let outer = Gateway::spawn(&folder, {
        trusting.env("SSL_CERT_FILE", pem("cert"));
        trusting
    });
    let seen = post(outer.listen, "/echo", Some("k"), "{}").await;
    assert_eq!(seen.status, 200, "{seen:?}");
    let host = format!("localhost:{}", inner.listen.port());
    assert_eq!(seen.json()["headers"]["host"][0], host, "the name that is served there");
    assert_eq!(app.ran(), 1);
    drop(outer);
    // A certificate that is not trusted: nothing was sent.
    let mut wary = command(&folder, &["serve", "--upstream", &url]);
    wary.args(["--listen=127.0.0.1:0", "--admin=127.0.0.1:0"]);
    let wary = Gateway::spawn(&folder, wary);
    let failed = post(wary.listen, "/echo", Some("l"), "{}").await;
    assert_eq!(failed.problem(), (502, "upstream.failed".into()));
    // Plain bytes to a TLS listener end the connection, nothing else.
    assert_eq!(try_send(inner.listen, request("/echo", Some("m"), "{}")).await, None);
    assert_eq!(app.ran(), 1);
}

#[test]
fn an_idle_gateway_ends_at_once_and_leaves_a_ready_file_that_a_start_replaces() {
    let folder = folder("idle");
    std::fs::write(folder.join("ready.json"), "stale").unwrap();
    let gateway = Gateway::start_at(&folder, "http://127.0.0.1:9", &[]);
    let ready = std::fs::read_to_string(folder.join("ready.json")).unwrap();
    let pid = gateway.child.id();
    let (listen, admin) = (gateway.listen, gateway.admin);
    let expected = serde_json::json!({
        "listen": format!("http://{listen}"), "admin": format!("http://{admin}"), "pid": pid,
    });
    assert_eq!(serde_json::from_str::<serde_json::Value>(&ready).unwrap(), expected);
    gateway.terminate();
    assert_eq!(gateway.ended(), (Some(0), String::new()));
    // One that can't start leaves no stale file behind.
    let mut failing = command(&folder, &["serve", "--upstream", "http://127.0.0.1:9"]);
    failing.args(["--listen", &listen.to_string(), "--admin", "192.0.2.1:1"]);
    failing.args(["--ready-file", "ready.json"]).stderr(Stdio::piped());
    let mut child = failing.spawn().unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{said}");
    assert!(!folder.join("ready.json").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operator_reads_what_shadow_mode_would_have_done() {
    let (folder, (upstream, app)) = (folder("shadow"), api().await);
    let file = "[[route]]\nmatch = \"POST /payments\"\nmode = \"shadow\"\n\
                [[principal]]\ntenant = \"acme\"\ncaller = \"ada\"\n\
                token_sha256 = \
                \"2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\"\n";
    std::fs::write(folder.join("onceward.toml"), file).unwrap();
    let gateway = Gateway::start(&folder, upstream, &[]);
    for body in ["{}", "{}", "[1]"] {
        let answer = post(gateway.listen, "/payments", Some("k"), body).await;
        assert!(answer.status == 201 && !answer.is_replay(), "it goes on as it came");
    }
    assert_eq!(app.ran(), 3);
    let report = async |token: &str| {
        let asked = Request::get("/v1/shadow")
            .header("host", "x")
            .header("authorization", format!("Bearer {token}"));
        send(gateway.admin, asked.body(Empty::<Bytes>::new()).unwrap()).await
    };
    assert_eq!(report("secret").await.problem(), (403, "auth.forbidden".into()));
    let verdicts = serde_json::json!({
        "run": 1, "replay": 1, "idempotency.payload_mismatch": 1,
    });
    let route = serde_json::json!({ "endpoint": "POST /payments", "verdicts": verdicts });
    let expected = serde_json::json!({ "routes": [route], "forgotten": 0 });
    assert_eq!(report("operator-of-the-tests").await.json(), expected);
}
