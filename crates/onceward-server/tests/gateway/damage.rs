//! What is stored was changed behind our back: refused, and not in silence.

use http::Request;
use http_body_util::Empty;
use serde_json::{Value, json};

use super::client::{post, send};
use super::target::{Gateway, folder, serve};
use super::upstream::App;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i18_a_damaged_answer_is_not_sent_and_raises_an_alarm() {
    let (folder, app) = (folder("damage"), App::new());
    let upstream = serve(app.router()).await;
    let gateway = Gateway::start(&folder, upstream, &[]);
    assert_eq!(post(gateway.listen, "/payments", Some("k"), "{}").await.status, 201);
    gateway.terminate();
    assert_eq!(gateway.ended().0, Some(0));
    let database = rusqlite::Connection::open(folder.join("onceward.db")).unwrap();
    // A line break in a stored header: everything behind it would be a response of its own.
    let changed = database.execute(
        "UPDATE outcomes SET body = \
         CAST(replace(body, CAST('application' AS BLOB), CAST('appli' || char(13, 10) || 'tion' \
         AS BLOB)) AS BLOB)",
        [],
    );
    assert_eq!(changed.unwrap(), 1);
    drop(database);
    let gateway = Gateway::start(&folder, upstream, &[]);
    let refused = post(gateway.listen, "/payments", Some("k"), "{}").await;
    assert_eq!(refused.problem(), (500, "store.corrupt".into()));
    assert_eq!(app.ran(), 1, "it does not run again either");
    let asked = Request::get("/metrics")
        .header("host", "x")
        .header("authorization", "Bearer operator-of-the-tests");
    let metrics = send(gateway.admin, asked.body(Empty::<bytes::Bytes>::new()).unwrap()).await;
    let text = String::from_utf8(metrics.body.to_vec()).unwrap();
    assert!(
        text.contains(r#"store_errors_total{store="sqlite",code="store.corrupt"} 1"#),
        "{text}"
    );
    gateway.terminate();
    let (_, said) = gateway.ended();
    assert!(said.contains("ERROR") && said.contains("damaged"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m1_a_damaged_name_is_told_in_health_and_log_and_the_file_is_served() {
    let (folder, app) = (folder("damaged-name"), App::new());
    let upstream = serve(app.router()).await;
    let gateway = Gateway::start(&folder, upstream, &[]);
    for key in ["k1", "k2"] {
        assert_eq!(post(gateway.listen, "/payments", Some(key), "{}").await.status, 201);
    }
    assert_eq!(health(&gateway).await["status"], "ok");
    gateway.terminate();
    assert_eq!(gateway.ended().0, Some(0));
    let database = rusqlite::Connection::open(folder.join("onceward.db")).unwrap();
    let damage = "UPDATE records SET name = replace(name, 'k1', 'j1') WHERE name LIKE '%k1'";
    assert_eq!(database.execute(damage, []).unwrap(), 1);
    drop(database);
    let gateway = Gateway::start(&folder, upstream, &[]);
    let mut told = health(&gateway).await;
    while told["names"] == "checking" {
        told = health(&gateway).await;
    }
    assert_eq!((&told["names"], &told["status"]), (&json!("checked"), &json!("degraded")));
    let warning = told["warnings"][0].as_str().unwrap();
    assert!(
        warning.starts_with("the names of the keys in") && warning.contains("backup"),
        "{told}"
    );
    let replayed = post(gateway.listen, "/payments", Some("k2"), "{}").await;
    assert!(replayed.headers.contains_key("idempotency-replayed"), "{replayed:?}");
    gateway.terminate();
    let (_, said) = gateway.ended();
    assert!(said.contains("ERROR") && said.contains("the names of the keys in"), "{said}");
}

async fn health(gateway: &Gateway) -> Value {
    let asked = Request::get("/healthz").header("host", "x").body(Empty::<bytes::Bytes>::new());
    let answer = send(gateway.admin, asked.unwrap()).await;
    assert_eq!(answer.status, 200);
    serde_json::from_slice(&answer.body).unwrap()
}
