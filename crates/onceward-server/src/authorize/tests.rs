//! Permission asked of a real HTTP server.

use std::sync::Mutex;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request as Asked, State};
use axum::http::{HeaderMap as Heard, StatusCode};
use axum::response::{IntoResponse, Response as Answer};
use http::Request;

use super::*;

type Log = Arc<Mutex<Vec<(String, Heard)>>>;

async fn judge(State(log): State<Log>, asked: Asked) -> Answer {
    let headers = asked.headers().clone();
    log.lock().unwrap().push((asked.method().to_string(), headers.clone()));
    match headers.get("authorization").map(HeaderValue::as_bytes) {
        Some(b"good") => StatusCode::NO_CONTENT.into_response(),
        Some(b"slow") => std::future::pending().await,
        _ => {
            let marks = [("x-why", "not yours"), ("onceward-forged", "1"), ("connection", "x-why")];
            (StatusCode::FORBIDDEN, marks, "no").into_response()
        }
    }
}

/// A judge on a free port; it ends with the runtime.
async fn serve(log: Log) -> Uri {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().fallback(judge).with_state(log);
    tokio::spawn(async move { axum::serve(listener, app).await });
    format!("http://{address}/may").parse().unwrap()
}

fn head(credential: &str) -> Parts {
    let request = Request::builder()
        .method("POST")
        .uri("/v1/things?x=1")
        .header("authorization", credential)
        .header("content-length", "7")
        .header("transfer-encoding", "chunked")
        .header("connection", "x-hop")
        .header("x-hop", "1")
        .header("onceward-tenant", "forged")
        .header("x-original-method", "GET")
        .header("x_original_method", "GET")
        .header("x_original-uri", "/harmless")
        .header("X_Forwarded_Uri", "/harmless")
        .header("X-Forwarded_Method", "GET")
        .header("onceward_caller", "forged")
        .header("x_kept", "too")
        .header("x-kept", "yes");
    request.body(()).unwrap().into_parts().0
}

#[tokio::test]
async fn b06_permission_is_asked_with_method_path_and_headers() {
    let log = Log::default();
    let url = serve(log.clone()).await;
    let asker = Asker::new(Duration::from_millis(300)).unwrap();
    let hook = asker.hook(url, Dialect::Standard);
    let caller = Caller { tenant: "acme".into(), caller: "alice".into() };
    assert!(hook.ask(&head("good"), &caller).await.is_ok());
    let (method, heard) = log.lock().unwrap().remove(0);
    let text = |name: &str| heard.get(name).map(|value| value.to_str().unwrap().to_string());
    assert_eq!(method, "GET");
    assert_eq!(text("x-original-method").as_deref(), Some("POST"));
    assert_eq!(text("x-original-uri").as_deref(), Some("/v1/things?x=1"));
    assert_eq!(text("onceward-tenant").as_deref(), Some("acme"));
    assert_eq!(text("onceward-caller").as_deref(), Some("alice"));
    assert_eq!(text("x-kept").as_deref(), Some("yes"));
    assert_eq!(text("x_kept").as_deref(), Some("too"));
    for gone in ["x-hop", "transfer-encoding"] {
        assert_eq!(text(gone), None, "{gone}");
    }
    // Many servers read `_` as `-`: a client's word would be as good as ours.
    let respelt: Vec<_> = heard.keys().filter(|name| name.as_str().contains('_')).collect();
    assert_eq!(respelt, ["x_kept"]);
    let refused = hook.ask(&head("bad"), &caller).await.unwrap_err();
    assert_eq!((refused.status().as_u16(), &refused.body()[..]), (403, &b"no"[..]));
    assert!(!refused.headers().contains_key("onceward-forged"));
    let slow = hook.ask(&head("slow"), &caller).await.unwrap_err();
    assert_eq!(slow.status(), StatusCode::GATEWAY_TIMEOUT);
    let nobody = asker.hook("http://127.0.0.1:1/".parse().unwrap(), Dialect::Business);
    let refused = nobody.ask(&head("good"), &caller).await.unwrap_err();
    assert_eq!(refused.status(), StatusCode::BAD_GATEWAY);
    assert!(refused.body().starts_with(b"{\"error\""));
}
