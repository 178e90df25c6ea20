//! The store's secret: made at the first start, kept in the store, shared by every process on it.
//!
//! Keyed hashes of credentials, hashes of payload leaves and the seals of permits hang on it. It is
//! a document of the store itself, in a space that no list of the control API shows. Whoever reads
//! the store's file can read it; it protects against those who can't.

use onceward::engine::{Engine, EngineError, Put, STORE_TENANT};
use onceward_core::key::Subject;

use crate::failure::Failure;

/// Processes that may make it at the same time before one gives up.
const TRIES_MAX: usize = 16;

/// The secret of the engine's store; made when there is none.
pub(crate) async fn of_store(engine: &Engine) -> Result<[u8; 32], Failure> {
    let subject = Subject::new(STORE_TENANT, "onceward.secret", "v1").map_err(EngineError::from)?;
    for _ in 0..TRIES_MAX {
        if let Some(document) = engine.get(&subject).await? {
            return document.value.as_ref().try_into().map_err(|_| {
                let message = "the secret in the store is damaged; restore the store from a backup";
                Failure::failed("store.corrupt", message)
            });
        }
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|error| {
            let message = format!("the operating system gives no random numbers: {error}");
            Failure::failed("random", message)
        })?;
        // Of two who make it at once, one is first; the other reads what is there.
        if let Put::Written(_) = engine.put(&subject, 0, Some(secret.as_slice().into())).await? {
            return Ok(secret);
        }
    }
    Err(Failure::failed("store.contended", "the store's secret can't be made; try again"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onceward::store::memory::MemoryStore;
    use std::sync::Arc;

    #[tokio::test]
    async fn every_process_on_a_store_has_the_same_secret() {
        let store = Arc::new(MemoryStore::new());
        let (one, two) = (Engine::new(store.clone()), Engine::new(store));
        let (a, b) = tokio::join!(of_store(&one), of_store(&two));
        assert_eq!(a.unwrap(), b.unwrap());
        let other = Engine::new(Arc::new(MemoryStore::new()));
        assert_ne!(of_store(&other).await.unwrap(), of_store(&one).await.unwrap());
    }
}
