//! The secret that keys the hashes of credentials and payload leaves.
//!
//! Made at the first start, kept in the store as a document, the same for all processes on it:
//! with another one, every caller would be a new caller.

use onceward::engine::{Engine, Put};
use onceward_core::key::Subject;

use crate::failure::Failure;

/// The tenant of what belongs to nobody else. It holds a space, which no identity source makes.
const TENANT: &str = "onceward internal";
const SPACE: &str = "secret";
const NAME: &str = "identity";

/// The store's secret; made if this is the first start.
pub(crate) async fn of_store(engine: &Engine) -> Result<[u8; 32], Failure> {
    let subject = Subject::new(TENANT, SPACE, NAME)?;
    let mut made = [0; 32];
    getrandom::fill(&mut made).map_err(|error| {
        Failure::failed("secret", format!("the system gives no random numbers: {error}"))
    })?;
    loop {
        if let Some(found) = engine.get(&subject).await? {
            return <[u8; 32]>::try_from(&found.value[..]).map_err(|_| {
                let message = "the secret that the store keeps is damaged: it has not 32 bytes";
                Failure::failed("store.corrupt", message)
            });
        }
        match engine.put(&subject, 0, Some(made[..].into())).await? {
            Put::Written(_) => return Ok(made),
            // Another process was first: theirs is the one, unless someone deleted it.
            Put::Conflict { current: 0 | 1 } => {}
            Put::Conflict { .. } => {
                let message = "the secret that the store kept was deleted";
                return Err(Failure::failed("store.corrupt", message));
            }
        }
    }
}
