//! Watching: resolves when one of the keys may have changed, or is refused as unsupported.

use std::time::Duration;

use super::bench::{Bench, Checked, Failure, draft, ensure, key, put};
use crate::store::StoreError;

/// How long a change may take to be noticed before the case fails.
const PATIENCE: Duration = Duration::from_secs(10);

/// With the capability, a change of the key ends a watch; without, a watch is unsupported.
pub async fn a_watch_ends_with_a_change_or_is_unsupported(bench: &Bench<'_>) -> Checked {
    let key = key("a")?;
    let watched = bench.store.watch(vec![key.clone()]);
    if !bench.can.watch {
        return match watched.await {
            Err(StoreError::Unsupported { .. }) => Ok(()),
            other => Err(Failure::new(format!("must be unsupported, but got {other:?}"))),
        };
    }
    let batch = bench.batch(vec![], vec![put(draft(&key))]);
    let change = async {
        // Lets the watch be polled first; a store may register it only then.
        tokio::task::yield_now().await;
        bench.apply(&batch).await
    };
    let both = async { tokio::join!(biased; watched, change) };
    let Ok((watched, changed)) = tokio::time::timeout(PATIENCE, both).await else {
        return Err(Failure::new(format!("not noticed within {PATIENCE:?}")));
    };
    changed?;
    ensure!(watched.is_ok(), "a watch that ends well: {watched:?}");
    Ok(())
}
