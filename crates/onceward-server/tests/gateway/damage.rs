//! What is stored was changed behind our back: refused, and not in silence.

use super::client::{admin, post};
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
    let metrics = admin(gateway.admin, "GET", "/metrics").await;
    let text = String::from_utf8(metrics.body.to_vec()).unwrap();
    assert!(
        text.contains(r#"store_errors_total{store="sqlite",code="store.corrupt"} 1"#),
        "{text}"
    );
    // The way out: an operator erases it, and a retry runs.
    let records = admin(gateway.admin, "GET", "/v1/records").await.json();
    let path = format!("/v1/records/{}", records["items"][0]["ref"].as_str().unwrap());
    let erased = admin(gateway.admin, "DELETE", &path).await;
    assert_eq!(erased.status, 200, "{erased:?}");
    assert_eq!(post(gateway.listen, "/payments", Some("k"), "{}").await.status, 201);
    assert_eq!(app.ran(), 2);
    gateway.terminate();
    let (_, said) = gateway.ended();
    assert!(said.contains("ERROR") && said.contains("damaged"), "{said}");
}
