//! The business dialect in the gateway: what the service does by itself, any service gets.

use serde_json::json;

use super::conflicts::conflict;
use super::world::{Call, ORGANISATION_A, Service, hold, post};

/// The route as the configuration says it.
const ROUTES: &str = r#"
[identity]
source = "header"
tenant_header = "x-tenant"
caller_header = "x-caller"

[[route]]
match = "POST /bookings/hold"
dialect = "business"
missing_key = "derive"
scope = ["tenant", "endpoint"]
retain = "30m"
fingerprint = { ignore = ["timestamp"], arrays = "unordered" }
"#;

fn by(call: Call, tenant: &str, caller: &str) -> Call {
    call.header("x-tenant", tenant).header("x-caller", caller)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e01_e04_the_gateway_speaks_the_same_dialect() {
    let service = Service::start("behind");
    let folder = service.folder.join("gateway");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("onceward.toml"), ROUTES).unwrap();
    let upstream = format!("http://{}", service.listen);
    let arguments = ["serve", "--upstream", &upstream];
    let tokens = [("ONCEWARD_ADMIN_TOKEN", "demo-operator")];
    let place = ("127.0.0.1:0", "sqlite:gateway.db");
    let gateway = Service::spawn_at("gateway", folder, &arguments, place, &tokens);
    let book = |phone: &str| post("/bookings/hold").json(&hold(phone, 10));
    let first = by(book("+1").keyless(), ORGANISATION_A, "ada").send(&gateway).await.must_be(201);
    let mut volatile = hold("+1", 10);
    volatile["timestamp"] = json!(7);
    let again = post("/bookings/hold").keyless().json(&volatile);
    let again = by(again, ORGANISATION_A, "bob").send(&gateway).await;
    assert_eq!((again.is_again(), &again.body), (true, &first.body), "two users, one request");
    let other = by(book("+1").keyless(), "elsewhere", "ada").send(&gateway).await;
    assert!(!other.must_be(201).is_again(), "another tenant, another key");
    by(book("+1").key("k"), ORGANISATION_A, "ada").send(&gateway).await.must_be(201);
    let refused = by(book("+2").key("k"), ORGANISATION_A, "ada").send(&gateway).await;
    let details = conflict(&refused);
    assert_eq!(details["diff_summary"], json!(["customer_info.phone: '+1' → '+2'"]));
    let left = details["retry_after"].as_u64().unwrap();
    assert!((1_700..=1_800).contains(&left), "{left}");
    let records = gateway.records(ORGANISATION_A).await;
    let derived = format!("{}:POST:bookings-hold:", "1".repeat(32));
    let is_derived = |record: &serde_json::Value| {
        record["id"].as_str().unwrap().strip_prefix(&derived).is_some_and(|hash| hash.len() == 16)
    };
    assert_eq!(records.iter().filter(|record| is_derived(record)).count(), 1, "{records:?}");
    let conflicts = gateway.metric("onceward_conflicts_total{endpoint=\"POST /bookings/hold\"}");
    assert_eq!(conflicts.await, 1.0);
}
