//! The check for an answer of 5xx that lets go of its key: a service charges, then says that it
//! failed.
//!
//! With the HTTP layer built in it is the real one, around a service that does just that; without
//! it, the core is asked what such an answer comes to.

use super::checks::broken;
use crate::testing::sim::Violation;

type Checked = Result<Option<Violation>, String>;

/// i01: of an effect elsewhere there is one per fence at most, and under `hold` one at all.
pub(super) fn a_failure_keeps_the_key() -> Checked {
    Ok(broken(charged()? > 1, "i01", "after a 5xx, a key under `hold` ran again"))
}

#[cfg(feature = "http")]
fn charged() -> Result<u64, String> {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::{Context, Poll};

    use http::{Request, Response};
    use onceward_core::record::OnAbandoned;
    use tower_layer::Layer;
    use tower_service::Service;

    use crate::engine::Engine;
    use crate::http::{Body, Caller, Door, Identity, OncewardLayer, Policy, Routes};
    use crate::store::memory::MemoryStore;

    #[derive(Clone, Default)]
    struct Charges(Arc<AtomicU64>);

    impl Service<Request<Body>> for Charges {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Response<Body>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Body>) -> Self::Future {
            self.0.fetch_add(1, Ordering::SeqCst);
            let mut response = Response::new(Body::from(bytes::Bytes::new()));
            *response.status_mut() = http::StatusCode::BAD_GATEWAY;
            std::future::ready(Ok(response))
        }
    }

    let service = Charges::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.map_err(|error| error.to_string())?.block_on(async {
        let policy = Policy { on_abandoned: OnAbandoned::Hold, ..Policy::default() };
        let routes = Routes::every(policy).map_err(|error| error.to_string())?;
        let caller = Caller { tenant: "acme".into(), caller: "ada".into() };
        let engine = Engine::new(Arc::new(MemoryStore::new()));
        let door = Door::new(engine, Identity::Single(caller), routes);
        let mut protected = OncewardLayer::new(door).layer(service.clone());
        for _ in 0..3 {
            let request = Request::post("/payments").header("idempotency-key", "k");
            let request = request.body(Body::from(bytes::Bytes::new()));
            let request = request.map_err(|error| error.to_string())?;
            let Ok(_) = protected.call(request).await;
        }
        Ok(service.0.load(Ordering::SeqCst))
    })
}

#[cfg(not(feature = "http"))]
fn charged() -> Result<u64, String> {
    use onceward_core::outcome_policy::{Ending, Said, Statuses, ending};

    let said = Said { status: 502, ..Said::default() };
    Ok(if ending(&said, &Statuses::default()) == Ending::Unknown { 1 } else { 3 })
}
