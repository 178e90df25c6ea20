//! The binary on Postgres: migrating, refusing an older schema, and an upstream that completes in a
//! transaction of its own.
//!
//! Each test has a database of its own on the server that `ONCEWARD_TEST_POSTGRES_URL` names.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use http::Request;
use http_body_util::{Empty, Full};
use tokio_postgres::{Client, NoTls};

use super::client::{Answer, post, request, send};
use super::read_only::{done_before, health_becomes, holds_while_locked};
use super::target::{Gateway, command, folder, serve};
use super::upstream::App;

/// A database that is removed when the test has passed.
struct Database {
    name: String,
    url: String,
    server: Client,
}

impl Database {
    async fn new(test: &str) -> Self {
        let server = std::env::var("ONCEWARD_TEST_POSTGRES_URL").expect(
            "ONCEWARD_TEST_POSTGRES_URL is not set: this test needs a Postgres server; \
             `cargo xtask services up postgres` starts one",
        );
        let name = format!("ow_{test}_{}", std::process::id());
        let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
        let server = connect(&server).await;
        server.batch_execute(&format!("DROP DATABASE IF EXISTS {name}")).await.unwrap();
        server.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        Self { name, url, server }
    }

    async fn remove(self) {
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        self.server.batch_execute(&drop).await.unwrap();
    }
}

async fn connect(url: &str) -> Client {
    let (client, connection) =
        tokio_postgres::connect(url, NoTls).await.expect("the test server answers");
    tokio::spawn(connection);
    client
}

/// Runs the binary to its end: exit code and what it said on standard error.
fn ran(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let output = command(folder, arguments).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

async fn health(gateway: &Gateway) -> serde_json::Value {
    let request = Request::get("/healthz").header("host", "x").body(Empty::new()).unwrap();
    send::<Empty<bytes::Bytes>>(gateway.admin, request).await.json()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_that_is_missing_is_exit_2_and_migrating_makes_it() {
    let database = Database::new("migrate").await;
    let folder = folder("pg-migrate");
    let serve = ["serve", "--upstream", "http://127.0.0.1:9", "--store", &database.url];
    let (code, said) = ran(&folder, &serve);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("onceward migrate --store"), "{said}");
    for _ in 0..2 {
        let (code, said) = ran(&folder, &["migrate", "--store", &database.url]);
        assert_eq!(code, 0, "{said}");
    }
    let gateway =
        Gateway::start_at(&folder, "http://127.0.0.1:9", &[format!("--store={}", database.url)]);
    let health = health(&gateway).await;
    assert_eq!((&health["status"], &health["store"]), (&"ok".into(), &"postgres".into()));
    assert_eq!(health["durability"], "full");
    let warnings = health["warnings"].to_string();
    assert!(warnings.contains("superuser"), "the test's login is one: {warnings}");
    drop(gateway);
    let client = connect(&database.url).await;
    client.batch_execute("DELETE FROM onceward.migrations WHERE version > 1").await.unwrap();
    let (code, said) = ran(&folder, &serve);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("is at version 1"), "{said}");
    drop(client);
    database.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weak_commits_are_refused_unless_allowed_and_then_shown() {
    let database = Database::new("weak").await;
    let folder = folder("pg-weak");
    assert_eq!(ran(&folder, &["migrate", "--store", &database.url]).0, 0);
    let alter = format!("ALTER DATABASE {} SET synchronous_commit = off", database.name);
    database.server.batch_execute(&alter).await.unwrap();
    let (code, said) =
        ran(&folder, &["serve", "--upstream", "http://127.0.0.1:9", "--store", &database.url]);
    assert_ne!(code, 0);
    assert!(said.contains("synchronous_commit") && said.contains("allow=async_commit"), "{said}");
    let allowed = format!("--store={}?allow=async_commit", database.url);
    let gateway = Gateway::start_at(&folder, "http://127.0.0.1:9", &[allowed]);
    assert_eq!(health(&gateway).await["durability"], "weak (synchronous_commit=off)");
    drop(gateway);
    database.remove().await;
}

/// The example service, on a port that it keeps when it is started again.
struct Service {
    child: Child,
    port: String,
    url: String,
}

impl Service {
    fn start(port: &str, database: &str) -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../examples/upstreams/own_transaction.py");
        let mut child = Command::new("python3")
            .arg(file)
            .args([port, database])
            .stdout(Stdio::piped())
            .spawn()
            .expect("this test needs python3");
        let mut url = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut url).unwrap();
        assert!(url.starts_with("http://"), "this test needs `pip install psycopg[binary]`");
        let url = url.trim().to_string();
        Self { child, port: url.rsplit_once(':').unwrap().1.into(), url }
    }

    /// Waits until it is gone, and starts it again.
    fn again(mut self, database: &str) -> Self {
        assert!(!self.child.wait().unwrap().success());
        Self::start(&self.port, database)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn pay(gateway: &Gateway, key: &str, dies: Option<&str>) -> Answer {
    let mut request: Request<Full<bytes::Bytes>> =
        request("/payments", Some(key), r#"{"amount":5}"#);
    if let Some(point) = dies {
        request.headers_mut().insert("x-die", point.parse().unwrap());
    }
    send(gateway.listen, request).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_an_upstream_that_is_killed_leaves_both_its_row_and_the_answer_or_neither() {
    let database = Database::new("own").await;
    let folder = folder("pg-own");
    assert_eq!(ran(&folder, &["migrate", "--store", &database.url]).0, 0);
    // The app's login has its own tables and may call the functions.
    let login = format!("ow_app_{}", std::process::id());
    let sql = connect(&database.url).await;
    sql.batch_execute(&format!(
        "CREATE ROLE {login} LOGIN IN ROLE onceward_app; GRANT CREATE ON SCHEMA public TO {login}"
    ))
    .await
    .unwrap();
    let (_, place) = database.url.split_once('@').unwrap();
    let app_url = format!("postgres://{login}@{place}");
    let mut service = Service::start("0", &app_url);
    let route = "[[route]]\nmatch = \"POST /payments\"\ncomplete = \"upstream\"\n";
    std::fs::write(folder.join("o.toml"), route).unwrap();
    let flags = [format!("--store={}", database.url), "--config=o.toml".into()];
    let gateway = Gateway::start_at(&folder, &service.url, &flags);
    let count = async |key: &str| -> i64 {
        let count = "SELECT count(*) FROM payments WHERE key = $1";
        sql.query_one(count, &[&key]).await.unwrap().get(0)
    };

    let first = pay(&gateway, "plain", None).await;
    assert_eq!((first.status, first.is_replay()), (201, false), "{first:?}");
    assert_eq!(first.header("location"), Some("/payments/1"), "what is recorded is sent");
    let retried = pay(&gateway, "plain", None).await;
    assert_eq!((retried.status, retried.is_replay()), (201, true));
    assert_eq!(retried.body, first.body);
    // What it refuses without a record is passed on, and may be tried again.
    let bad = post(gateway.listen, "/payments", Some("bad"), "{}").await;
    assert_eq!(bad.status, 422, "{bad:?}");
    assert!(!post(gateway.listen, "/payments", Some("bad"), "{}").await.is_replay());

    for (point, there) in [("before", 0), ("row", 0), ("completed", 0), ("committed", 1)] {
        let answer = pay(&gateway, point, Some(point)).await;
        let expected = if there == 1 { 201 } else { 502 };
        assert_eq!(answer.status, expected, "{point}: {answer:?}");
        assert_eq!(count(point).await, there, "{point}");
        service = service.again(&app_url);
        let retried = pay(&gateway, point, None).await;
        assert_eq!(retried.status, 201, "{point}: {retried:?}");
        assert_eq!(retried.is_replay(), there == 1, "{point}");
        assert_eq!(count(point).await, 1, "{point}");
    }
    drop((gateway, service));
    sql.batch_execute(&format!("DROP OWNED BY {login} CASCADE; DROP ROLE {login}")).await.unwrap();
    drop(sql);
    database.remove().await;
}

#[test]
fn an_upstream_can_complete_only_where_it_has_sql() {
    let folder = folder("pg-sqlite");
    let route = "[[route]]\nmatch = \"POST /payments\"\ncomplete = \"upstream\"\n";
    std::fs::write(folder.join("o.toml"), route).unwrap();
    let (code, said) =
        ran(&folder, &["serve", "--upstream", "http://127.0.0.1:9", "--config", "o.toml"]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("needs a Postgres store"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m7_replays_go_on_while_somebody_locks_the_table() {
    let (database, folder, app) = (Database::new("locked").await, folder("pg-locked"), App::new());
    let upstream = serve(app.router()).await;
    assert_eq!(ran(&folder, &["migrate", "--store", &database.url]).0, 0);
    let flags = [format!("--store={}", database.url)];
    let gateway = done_before(|| Gateway::start(&folder, upstream, &flags)).await;
    let other = connect(&database.url).await;
    // Others may read, as while an index is made.
    let lock = "BEGIN; LOCK TABLE onceward.records IN EXCLUSIVE MODE";
    other.batch_execute(lock).await.unwrap();
    holds_while_locked(&gateway, &app).await;
    other.batch_execute("ROLLBACK").await.unwrap();
    health_becomes(gateway.admin, "ok").await;
    assert_eq!(post(gateway.listen, "/payments", Some("later"), "{}").await.status, 201);
    drop(gateway);
    drop(other);
    database.remove().await;
}
