//! Layers inside layers: on one store the outer one claims and the inner ones let pass, on two each
//! claims; and what an unknown end leaves behind, told by the audit and to another payload.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Request, Response, StatusCode};
use axum::routing::post;
use onceward::engine::Engine;
use onceward::http::{
    Attempt, Caller, Commits, Dialect, Door, Identity, OncewardLayer, Policy, Routes,
};
use onceward::store::memory::MemoryStore;
use onceward::store::{Items, List};
use onceward_core::outcome_policy::Statuses;
use onceward_core::record::OnAbandoned;
use tower::ServiceExt;

use super::shop::{Ask, Effect, Shop, send};
use super::support::on::On;
use super::{COLUMNS, How};

fn engine() -> Engine {
    Engine::new(Arc::new(MemoryStore::new()))
}

fn door(engine: &Engine, policy: Policy) -> Door {
    let caller = Caller { tenant: "acme".into(), caller: "ada".into() };
    Door::new(engine.clone(), Identity::Single(caller), Routes::every(policy).unwrap())
}

/// Counts, and says which fence it was told.
async fn counts(State(ran): State<Arc<AtomicU64>>, request: Request<Body>) -> String {
    let number = ran.fetch_add(1, Ordering::SeqCst) + 1;
    let fence = request.headers()["onceward-fence"].to_str().unwrap().to_string();
    let attempt = request.extensions().get::<Attempt>().unwrap();
    assert_eq!(fence, attempt.fence.to_string());
    format!("run {number}")
}

fn counting() -> (Router, Arc<AtomicU64>) {
    let ran = Arc::new(AtomicU64::new(0));
    (Router::new().route("/charges", post(counts)).with_state(ran.clone()), ran)
}

async fn records(engine: &Engine) -> usize {
    let all = List::Records { tenant: None, scope: None, state: None };
    let Items::Records(records) = engine.list(all, None, 10).await.unwrap().items else {
        unreachable!()
    };
    records.len()
}

/// The request runs once and is replayed then.
async fn runs_once(router: &Router, ran: &AtomicU64) {
    let first = send(router, "k", "{}".into()).await;
    assert_eq!((first.status, first.body.as_deref()), (200, Some(&b"run 1"[..])), "{first:?}");
    let again = send(router, "k", "{}".into()).await;
    assert!(again.has("idempotency-replayed", "true"), "{again:?}");
    assert_eq!((again.status, &again.body), (200, &first.body));
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn h3_b02_one_layer_twice_in_a_router_claims_once() {
    let engine = engine();
    let layer = OncewardLayer::new(door(&engine, Policy::default()));
    let (router, ran) = counting();
    runs_once(&router.route_layer(layer.clone()).layer(layer), &ran).await;
    assert_eq!(records(&engine).await, 1);
}

#[tokio::test]
async fn h3_b02_three_layers_on_one_store_claim_once() {
    let engine = engine();
    let (mut router, ran) = counting();
    for dialect in [Dialect::Business, Dialect::Planning, Dialect::Standard] {
        let policy = Policy { dialect, ..Policy::default() };
        router = router.layer(OncewardLayer::new(door(&engine, policy)));
    }
    runs_once(&router, &ran).await;
    assert_eq!(records(&engine).await, 1);
}

#[tokio::test]
async fn h3_b02_layers_on_two_stores_each_claim_also_around_one_of_the_first() {
    let (first, second) = (engine(), engine());
    let (mut router, ran) = counting();
    for engine in [&first, &second, &first] {
        router = router.layer(OncewardLayer::new(door(engine, Policy::default())));
    }
    runs_once(&router, &ran).await;
    assert_eq!((records(&first).await, records(&second).await), (1, 1));
}

/// A batch: its parts are requests of their own, made out of its head, with keys of their own.
#[tokio::test]
async fn h3_b02_requests_that_a_handler_makes_out_of_its_own_are_claimed_as_others_are() {
    let engine = engine();
    let layer = OncewardLayer::new(door(&engine, Policy::default()));
    let (charges, ran) = counting();
    let inner = charges.layer(layer.clone());
    let batch = async move |request: Request<Body>| {
        let (head, _) = request.into_parts();
        for (path, key) in [("/charges", "part"), ("/charges", "part"), ("/charges", "other")] {
            let mut part = Request::from_parts(head.clone(), Body::from("{}"));
            *part.uri_mut() = path.parse().unwrap();
            part.headers_mut().insert("idempotency-key", key.parse().unwrap());
            part.headers_mut().remove("content-length");
            assert_eq!(inner.clone().oneshot(part).await.unwrap().status(), StatusCode::OK);
        }
    };
    let router = Router::new().route("/batch", post(batch)).layer(layer);
    let request = Request::post("/batch").header("idempotency-key", "k").body(Body::from("{}"));
    let answer = router.oneshot(request.unwrap()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!((ran.load(Ordering::SeqCst), records(&engine).await), (2, 3));
}

#[tokio::test]
async fn h3_b02_what_an_inner_layer_asks_for_beside_a_key_still_holds() {
    let engine = engine();
    let (router, ran) = counting();
    let inner = door(&engine, Policy::default()).with_authorize(|_, _| {
        let mut denied = Response::new("denied".into());
        *denied.status_mut() = StatusCode::FORBIDDEN;
        Box::pin(async move { Err(denied) })
    });
    let router = router
        .layer(OncewardLayer::new(inner))
        .layer(OncewardLayer::new(door(&engine, Policy::default())));
    for _ in 0..2 {
        let denied = send(&router, "k", "{}".into()).await;
        assert_eq!((denied.status, denied.body.as_deref()), (403, Some(&b"denied"[..])));
    }
    assert_eq!((ran.load(Ordering::SeqCst), records(&engine).await), (0, 0));
}

#[tokio::test]
async fn h3_a_refusal_of_an_inner_layer_is_not_stored_in_any_dialect() {
    for dialect in [Dialect::Standard, Dialect::Planning, Dialect::Measurements, Dialect::Business]
    {
        for commits in [Commits::Two, Commits::One] {
            let (inner_engine, outer_engine) = (engine(), engine());
            let hold = OnAbandoned::Hold;
            let policy =
                Policy { dialect: dialect.clone(), on_abandoned: hold, ..Policy::default() };
            let fails = |_: HeaderMap| async { StatusCode::BAD_GATEWAY };
            let outer = Policy { commits, ..Policy::default() };
            let router = Router::new()
                .route("/charges", post(fails))
                .layer(OncewardLayer::new(door(&inner_engine, policy)))
                .layer(OncewardLayer::new(door(&outer_engine, outer)));
            assert_eq!(send(&router, "k", "{}".into()).await.status, 502);
            // The inner one holds the key now and refuses with 409: nobody has judged that.
            for _ in 0..2 {
                let unknown = send(&router, "k", "{}".into()).await;
                assert_eq!(unknown.status, 409, "{dialect:?} {commits:?}");
                assert!(!unknown.has("idempotency-replayed", "true"), "{unknown:?}");
            }
        }
    }
}

#[tokio::test]
async fn h5_an_unknown_end_leaves_record_payload_hash_and_audit() {
    for (column, action) in [(0, "request.failed"), (1, "request.unknown")] {
        let mut shop = Shop::open(On::Memory).await;
        shop.serve(COLUMNS[column].policy(&Statuses::default()), true);
        let ask = Ask { how: How::Plain, status: 500, effect: Effect::Before };
        let first = shop.ask("k", ask).await;
        assert_eq!((first.status, first.body.as_deref()), (500, Some(&b"said"[..])));
        assert!(first.has("idempotency-stored", "false"));
        let other = shop.mismatch("k").await;
        assert_eq!((other.status, other.code().as_str()), (422, "idempotency.payload_mismatch"));
        assert!(shop.audited().await.iter().any(|there| there == action), "{action}");
        assert_eq!(shop.charged("k"), 1);
    }
}

/// A door for one caller.
fn door_of(engine: &Engine, caller: &str, policy: Policy) -> Door {
    let caller = Caller { tenant: "acme".into(), caller: caller.into() };
    Door::new(engine.clone(), Identity::Single(caller), Routes::every(policy).unwrap())
}

#[tokio::test]
async fn h3_b02_an_inner_layer_that_would_claim_another_key_claims_it() {
    let engine = engine();
    let (router, ran) = counting();
    let per_tenant = Policy { per_caller: false, ..Policy::default() };
    let inner = router.layer(OncewardLayer::new(door(&engine, per_tenant)));
    let [ada, bob] = ["ada", "bob"].map(|caller| {
        inner.clone().layer(OncewardLayer::new(door_of(&engine, caller, Policy::default())))
    });
    runs_once(&ada, &ran).await;
    let other = send(&bob, "k", "{}".into()).await;
    assert_eq!(other.body.as_deref(), Some(&b"run 1"[..]), "{other:?}");
    assert_eq!(ran.load(Ordering::SeqCst), 1, "once per tenant, as the inner one promises");
    assert_eq!(records(&engine).await, 3);
}

#[tokio::test]
async fn h3_b02_layers_that_end_one_key_in_two_ways_are_refused_before_anything_runs() {
    for (outer, inner) in [(Commits::Two, Commits::One), (Commits::One, Commits::Two)] {
        let engine = engine();
        let (router, ran) = counting();
        let [inner, outer] = [inner, outer]
            .map(|commits| door(&engine, Policy { commits, ..Policy::default() }))
            .map(OncewardLayer::new);
        let router = router.layer(inner).layer(outer);
        for _ in 0..2 {
            let refused = send(&router, "k", "{}".into()).await;
            assert_eq!((refused.status, &*refused.code()), (409, "idempotency.in_flight"));
            let body = String::from_utf8(refused.body.unwrap().to_vec()).unwrap();
            assert!(body.contains("commits"), "{body}");
        }
        assert_eq!((ran.load(Ordering::SeqCst), records(&engine).await), (0, 0));
    }
}

#[tokio::test]
async fn h3_b02_an_inner_door_asks_for_itself_who_the_caller_is() {
    let (outer, inner) = (engine(), engine());
    let (router, ran) = counting();
    let bob = router.layer(OncewardLayer::new(door_of(&inner, "bob", Policy::default())));
    let headers = ["x-tenant", "x-caller"].map(http::HeaderName::from_static);
    let [tenant, caller] = headers;
    let ada = door(&outer, Policy::default()).with_identity_headers(tenant, caller);
    let both = bob.clone().layer(OncewardLayer::new(ada));
    assert_eq!(send(&both, "k", "{}".into()).await.status, 200);
    let replay = send(&bob, "k", "{}".into()).await;
    assert!(replay.has("idempotency-replayed", "true"), "{replay:?}");
    assert_eq!(ran.load(Ordering::SeqCst), 1, "the record is that of the inner door's caller");
}
