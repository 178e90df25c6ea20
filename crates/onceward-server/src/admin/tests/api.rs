//! The description of the API, request ids, and what the listener does with bad clients.

use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{OPERATOR, Server};

/// Wire §4, by hand: what has to be there.
const ENDPOINTS: &[(&str, &str)] = &[
    ("post", "/v1/claims"),
    ("post", "/v1/claims/batch"),
    ("post", "/v1/permits/renew"),
    ("post", "/v1/permits/complete"),
    ("post", "/v1/permits/fail"),
    ("post", "/v1/permits/release"),
    ("post", "/v1/jobs"),
    ("post", "/v1/jobs/take"),
    ("post", "/v1/queues/{queue}/pause"),
    ("post", "/v1/queues/{queue}/resume"),
    ("get", "/v1/records"),
    ("get", "/v1/records/{ref}"),
    ("delete", "/v1/records/{ref}"),
    ("post", "/v1/records/{ref}/resolve"),
    ("get", "/v1/dead"),
    ("post", "/v1/dead/{ref}/retry"),
    ("post", "/v1/dead/{ref}/discard"),
    ("get", "/v1/marks"),
    ("post", "/v1/sweep"),
    ("get", "/v1/shadow"),
    ("post", "/v1/views/{view}/rebuild"),
    ("get", "/v1/reports/{report}"),
    ("get", "/v1/audit"),
    ("get", "/v1/audit/verify"),
    ("get", "/healthz"),
    ("get", "/readyz"),
    ("get", "/metrics"),
    ("get", "/openapi.json"),
];

#[tokio::test]
async fn every_route_is_described_and_every_description_is_served() {
    let server = Server::start("openapi").await;
    let document = server.call(None, Method::GET, "/openapi.json", "").await.ok();
    assert!(document["openapi"].as_str().unwrap().starts_with("3."), "{document}");
    let mut described = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            described.push((method.clone(), path.clone()));
            assert!(operation["responses"].as_object().is_some_and(|all| !all.is_empty()));
            assert!(operation["summary"].is_string(), "{method} {path}");
            let is_open = operation["security"] == json!([{}]);
            let problem = &operation["responses"]["401"]["content"]["application/problem+json"];
            assert_eq!(problem.is_null(), is_open, "{method} {path}");
        }
    }
    let mut expected: Vec<_> =
        ENDPOINTS.iter().map(|(method, path)| (method.to_string(), path.to_string())).collect();
    described.sort();
    expected.sort();
    assert_eq!(described, expected);
    for (method, path) in described {
        let path = path.replace("{report}", "usage").replace(['{', '}'], "");
        let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
        let reply = server.call(Some(OPERATOR), method.clone(), &path, "").await;
        assert!(![404, 405].contains(&reply.status.as_u16()), "{method} {path}");
    }
    let claim = &document["components"]["schemas"]["ClaimBody"];
    assert_eq!(claim["properties"]["lease_ms"]["minimum"], 100, "{claim}");
    let schemas = &document["components"]["schemas"];
    for (schema, field) in [("CompleteBody", "outcome"), ("JobBody", "payload")] {
        let any = &schemas[schema]["properties"][field];
        assert!(any.is_object() && any.get("type").is_none(), "any JSON: {schema} {any}");
    }
    let fields = document["components"]["schemas"]["JobBody"]["properties"].as_object().unwrap();
    assert!(fields.contains_key("type") && !fields.contains_key("job_type"), "{fields:?}");
    assert_references(&document, &document);
    server.stop().await;
}

/// Every `$ref` leads somewhere.
fn assert_references(value: &Value, document: &Value) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(target)) = members.get("$ref") {
                let pointer = target.strip_prefix('#').unwrap();
                assert!(document.pointer(pointer).is_some(), "{target}");
            }
            members.values().for_each(|member| assert_references(member, document));
        }
        Value::Array(items) => items.iter().for_each(|item| assert_references(item, document)),
        _ => {}
    }
}

#[tokio::test]
async fn a25_request_ids_are_made_or_taken_over() {
    let server = Server::start("ids").await;
    let reply = server.get("/v1/records").await;
    assert_eq!(reply.headers["x-request-id"].len(), 32);
    let raw = "GET /v1/nothing HTTP/1.1\r\nHost: x\r\nX-Request-ID: r-7\r\n\
               X-Correlation-ID: c-9\r\nConnection: close\r\n\r\n";
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(raw.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert!(text.contains("x-request-id: r-7\r\n") && text.contains("x-correlation-id: c-9\r\n"));
    assert!(text.contains("\"instance\":\"urn:request:r-7\""), "{text}");
    server.stop().await;
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused() {
    let server = Server::start("large").await;
    let body = vec![b' '; crate::admin::answer::BODY_BYTES_MAX + 1];
    let reply = server.call(Some(OPERATOR), Method::POST, "/v1/claims", body).await;
    assert_eq!(reply.problem(413)["code"], "body.too_large");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documentations_commands_run_as_they_are_printed() {
    let server = Server::start("docs").await;
    let page = include_str!("../../../../../docs/control-api.md");
    let blocks: Vec<&str> =
        page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(blocks.len() >= 8, "{}", blocks.len());
    let run = tokio::process::Command::new("bash")
        .args(["-euo", "pipefail", "-c", &blocks.concat()])
        .env("SERVER", format!("http://{}", server.address))
        .env("TOKEN", OPERATOR)
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("bash and curl must be on the PATH: the documentation is tested with them");
    let said = String::from_utf8_lossy(&run.stdout);
    let failed = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{said}\n{failed}");
    server.stop().await;
}

#[tokio::test]
async fn what_is_not_utf_8_is_400_and_named_in_paths_and_queries() {
    let server = Server::start("not-utf-8").await;
    for (method, path, pointers) in [
        (Method::GET, "/v1/records/%ff", &["/ref"][..]),
        (Method::DELETE, "/v1/records/a%ff", &["/ref"]),
        (Method::POST, "/v1/records/%ff/resolve", &["/ref"]),
        (Method::POST, "/v1/dead/%ff/retry", &["/ref"]),
        (Method::POST, "/v1/dead/%ff/discard", &["/ref"]),
        (Method::POST, "/v1/queues/%ff/pause", &["/queue"]),
        (Method::POST, "/v1/queues/%c3%28/resume", &["/queue"]),
        (Method::GET, "/v1/reports/%ff", &["/report"]),
        (Method::POST, "/v1/views/%ff/rebuild", &["/view"]),
        (Method::GET, "/v1/records?tenant=%ff", &["/tenant"]),
        (Method::GET, "/v1/marks?tenant=a%ff&limit=0", &["/tenant", "/limit"]),
        (Method::GET, "/v1/audit?%ff=1", &["/%ff"]),
    ] {
        let reply = server.call(Some(OPERATOR), method, path, "").await;
        let problem = reply.problem(400);
        let errors = problem["errors"].as_array().unwrap();
        let named: Vec<_> = errors.iter().map(|error| error["pointer"].as_str().unwrap()).collect();
        assert_eq!(
            (named, &problem["code"]),
            (pointers.to_vec(), &"request.invalid".into()),
            "{path}"
        );
    }
    let fine = server.get("/v1/records?tenant=%C3%BC+1%2B%&scope=").await.problem(400);
    assert_eq!(fine["errors"].as_array().unwrap().len(), 1, "only the empty one: {fine}");
    server.stop().await;
}
