//! `mask` of a route: what is kept of a payload and what people are shown of it holds no masked
//! value, while a mismatch still names the field.

use http::Request;
use http_body_util::Empty;

use super::client::{post, send};
use super::target::{Gateway, command, folder, serve};
use super::upstream::App;

const ROUTE: &str = "[[route]]\nmatch = \"POST /payments\"\nkeep_payload = \"full\"\n\
                     dialect = \"business\"\nmissing_key = \"require\"\n\
                     mask = [\"iban\", \"cvc\"]\n";
const PAID: &str = r#"{"amount":5,"password":"not-masked-here","payer":{"IBAN":"DE89-secret"}}"#;

fn shown(folder: &std::path::Path, key: &str, flags: &[&str]) -> String {
    let output = command(folder, &[&["keys", "show", key], flags].concat()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m5_the_mask_of_a_route_holds_in_the_store_and_wherever_its_values_are_shown() {
    let (folder, app) = (folder("masks"), App::new());
    std::fs::write(folder.join("onceward.toml"), ROUTE).unwrap();
    let gateway = Gateway::start(&folder, serve(app.router()).await, &[]);
    assert_eq!(
        post(gateway.listen, "/payments?page=1&cvc=99-secret", Some("k"), PAID).await.status,
        201
    );
    let other = PAID.replace("DE89-secret", "DE90-secret");
    let differs = post(gateway.listen, "/payments?page=1&cvc=98-secret", Some("k"), &other).await;
    assert_eq!(differs.status, 409, "{differs:?}");
    let told = String::from_utf8(differs.body.to_vec()).unwrap();
    assert!(told.contains("payer.IBAN: '***' → '***'"), "{told}");
    let records = Request::get("/v1/records")
        .header("authorization", "Bearer operator-of-the-tests")
        .body(Empty::<bytes::Bytes>::new());
    let records = send(gateway.admin, records.unwrap()).await.json();
    let key = records["items"][0]["key"].as_str().unwrap();
    let mut said = vec![told, shown(&folder, key, &[]), shown(&folder, key, &["--json"])];
    gateway.terminate();
    assert_eq!(gateway.ended().0, Some(0));
    // Nobody holds the store now: the command looks itself.
    said.extend([shown(&folder, key, &[]), shown(&folder, key, &["--json"])]);
    for (place, said) in said.iter().enumerate() {
        assert!(!said.contains("-secret"), "{place}: {said}");
    }
    assert!(said[1..].iter().all(|said| said.contains("not-masked-here")), "{said:?}");
    for file in std::fs::read_dir(&folder).unwrap() {
        let file = file.unwrap().path();
        let bytes = std::fs::read(&file).unwrap();
        let found = bytes.windows(7).any(|window| window == b"-secret");
        assert!(!found, "{} holds a masked value", file.display());
    }
}
