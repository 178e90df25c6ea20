//! E01 and E02: which requests are one, with a key and without.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::world::{ORGANISATION_A, ORGANISATION_B, Service, book, get, hold, link, post, put};

/// The first 16 hexadecimal digits of a text's hash.
fn hash(canonical: &str) -> String {
    Sha256::digest(canonical)[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn ids(records: &[Value]) -> Vec<&str> {
    let mut ids: Vec<&str> = records.iter().map(|record| record["id"].as_str().unwrap()).collect();
    ids.sort_unstable();
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e01_a_key_is_derived_from_tenant_route_and_content() {
    let service = Service::start("e01_derived");
    book(&hold("+1", 10)).send(&service).await.must_be(201);
    post("/payments/link").keyless().json(&link(5)).send(&service).await.must_be(201);
    put("/customers/c1").keyless().json(&json!({ "name": "Ada" })).send(&service).await;
    post("/payments/link").keyless().by("demo-b").json(&link(5)).send(&service).await;
    let held = hash(
        r#"{"customer_info":{"name":"Ada","phone":"+1"},"requested_time":"2031-02-16T10:00:00Z"}"#,
    );
    let linked = hash(r#"{"amount":5,"currency":"EUR"}"#);
    let (a, b) = ("1".repeat(32), "2".repeat(32));
    let mut expected = [
        format!("{a}:POST:bookings-hold:{held}"),
        format!("{a}:POST:payments-link:{linked}"),
        format!("{a}:PUT:customers-{{id}}:{}", hash(r#"{"name":"Ada"}"#)),
    ];
    expected.sort_unstable();
    assert_eq!(ids(&service.requests(ORGANISATION_A).await), expected);
    let expected = [format!("{b}:POST:payments-link:{linked}")];
    assert_eq!(ids(&service.requests(ORGANISATION_B).await), expected);
    // Whoever sends the derived key means the same request.
    let again = post("/payments/link").key(&format!("{a}:POST:payments-link:{linked}"));
    assert!(again.json(&link(5)).send(&service).await.must_be(201).is_again());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e01_a_double_click_is_one_hold_and_two_users_of_a_tenant_are_one() {
    let service = Service::start("e01_click");
    let clicks = (0..8).map(|n| book(&hold("+1", 10)).by(["demo-a", "demo-a2"][n % 2]));
    let answers = futures_util::future::join_all(clicks.map(|click| click.send(&service))).await;
    let first = answers.iter().find(|answer| !answer.is_again()).unwrap().clone().must_be(201);
    assert_eq!(answers.iter().filter(|answer| !answer.is_again()).count(), 1);
    assert!(answers.iter().all(|answer| answer.status == 201 && answer.body == first.body));
    assert_eq!(service.entries(ORGANISATION_A, "hold.create").await.len(), 1);
    // Another tenant is another.
    let theirs = book(&hold("+1", 10)).by("demo-b").send(&service).await.must_be(201);
    assert!(!theirs.is_again() && theirs.id() != first.id());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e01_the_clients_own_key_is_used_and_path_values_and_routes_count() {
    let service = Service::start("e01_own");
    let one = post("/payments/link").key("mine").json(&link(5)).send(&service).await.must_be(201);
    let two = post("/payments/link").key("other").json(&link(5)).send(&service).await.must_be(201);
    assert_ne!(one.id(), two.id(), "the keys say that they are two");
    let named = |path: &str| put(path).key("mine").json(&json!({ "name": "Ada" }));
    // The same key at another route or another path value is another key.
    for path in ["/customers/c1", "/customers/c2"] {
        assert!(!named(path).send(&service).await.must_be(201).is_again(), "{path}");
        assert!(named(path).send(&service).await.must_be(201).is_again(), "{path}");
    }
    let job = put("/jobs/c1").key("mine").json(&json!({ "name": "Ada" }));
    assert!(!job.send(&service).await.must_be(201).is_again());
    assert_eq!(service.requests(ORGANISATION_A).await.len(), 5);
    for bad in ["", "a b", "\u{e9}", &"x".repeat(129)] {
        let refused = post("/payments/link").key(bad).json(&link(5)).send(&service).await;
        assert_eq!(refused.error(), (400, "IDEMPOTENCY_KEY_INVALID".into()), "{bad:?}");
    }
    assert_eq!(service.requests(ORGANISATION_A).await.len(), 5, "nothing is left of those");
    post("/payments/link").keyless().anonymous().json(&link(5)).send(&service).await.must_be(401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e01_another_query_is_another_request_without_a_key() {
    let service = Service::start("e01_query");
    let send = async |query: &str| {
        let path = format!("/payments/link{query}");
        post(&path).keyless().json(&link(5)).send(&service).await.must_be(201)
    };
    let (plain, asked) = (send("").await, send("?source=web").await);
    assert_ne!(plain.id(), asked.id());
    assert!(send("").await.is_again() && send("?source=web").await.is_again());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e02_what_does_not_count_makes_no_second_request() {
    let service = Service::start("e02_same");
    let base =
        r#"{"items":[{"sku":"a","qty":1},{"sku":"b","qty":2}],"note":"n","deep":{"x":[1,2]}}"#;
    let first = post("/estimates/draft").keyless().raw(base).send(&service).await.must_be(201);
    let volatile = ["created_at", "updated_at", "timestamp", "_metadata", "request_id", "trace_id"]
        .map(|name| base.replace("\"note\"", &format!("\"{name}\":\"now\",\"note\"")));
    let mut same = volatile.to_vec();
    same.extend([
        base.replace("{\"x\"", "{\"session_id\":{\"any\":[1]},\"x\""),
        base.replace("\"sku\":\"a\"", "\"timestamp\":7,\"sku\":\"a\""),
        base.replace(',', " ,\n\t").replace(':', " : "),
        r#"{"deep":{"x":[1,2]},"note":"n","items":[{"qty":1,"sku":"a"},{"qty":2,"sku":"b"}]}"#
            .into(),
        base.replace(
            r#"[{"sku":"a","qty":1},{"sku":"b","qty":2}]"#,
            r#"[{"sku":"b","qty":2},{"sku":"a","qty":1}]"#,
        ),
        base.replace("[1,2]", "[2,1]"),
        base.replace("\"qty\":1", "\"qty\":1.0").replace("\"n\"", "\"\\u006e\""),
    ]);
    for body in same {
        let again = post("/estimates/draft").keyless().raw(&body).send(&service).await;
        assert!(again.must_be(201).is_again(), "{body}");
        let keyed = post("/estimates/draft").key("k").raw(&body).send(&service).await;
        keyed.must_be(201);
    }
    assert_eq!(service.entries(ORGANISATION_A, "estimate.create").await.len(), 2);
    let kept = get(&format!("/estimates/draft/{}", first.id())).send(&service).await.must_be(200);
    assert_eq!(kept.json(), first.json(), "the first one's own lines, in their order");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e02_what_counts_makes_another_request() {
    let service = Service::start("e02_other");
    let base = r#"{"items":[{"sku":"a","qty":1},{"sku":"b","qty":2}],"note":"n"}"#;
    let others = [
        base.to_string(),
        base.replace("\"qty\":2", "\"qty\":3"),
        base.replace("\"n\"", "\"N\""),
        base.replace("\"note\"", "\"notes\""),
        base.replace(
            "{\"sku\":\"b\",\"qty\":2}",
            "{\"sku\":\"b\",\"qty\":2},{\"sku\":\"b\",\"qty\":2}",
        ),
        base.replace("\"note\"", "\"created\":1,\"note\""),
        base.replace("\"n\"", "null"),
    ];
    for body in &others {
        let made = post("/estimates/draft").keyless().raw(body).send(&service).await;
        assert!(!made.must_be(201).is_again(), "{body}");
    }
    assert_eq!(service.requests(ORGANISATION_A).await.len(), others.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e01_a_path_that_is_spelled_otherwise_has_the_same_value() {
    let service = Service::start("e01_spelled");
    let ada = json!({ "name": "Ada" });
    let first = put("/customers/ab").keyless().json(&ada).send(&service).await.must_be(201);
    for spelled in ["/customers/%61b", "/customers/a%62", "/customers/%61%62"] {
        let again = put(spelled).keyless().json(&ada).send(&service).await.must_be(201);
        assert!(again.is_again() && again.body == first.body, "{spelled}");
        let keyed = put(spelled).key("k").json(&ada).send(&service).await;
        assert_eq!(keyed.is_again(), spelled != "/customers/%61b", "{spelled}");
    }
    let again = put("/%63ustomers/ab").keyless().json(&ada).send(&service).await.must_be(201);
    assert!(again.is_again() && again.body == first.body, "no 404 comes in its place");
    put("/customer%73/new").key("n").json(&ada).send(&service).await.must_be(201);
    let again = put("/customers/new").key("n").json(&ada).send(&service).await.must_be(201);
    assert!(again.is_again());
    // A slash that is part of a value stays one.
    let nested = put("/customers/a%2Fb").keyless().json(&ada).send(&service).await.must_be(201);
    assert!(!nested.is_again());
    assert_eq!(nested.header("location"), "/customers/a%2Fb");
    assert_eq!(get("/customers/a%2fb").send(&service).await.must_be(200).id(), "a/b");
    for call in [put("/customers/%FF").json(&ada), get("/customers/%FF")] {
        let none = call.send(&service).await.must_be(404);
        assert_eq!(none.json()["error"]["code"], "NOT_FOUND");
    }
}
