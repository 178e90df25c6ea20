//! The event store on every store: numbers, repetitions, restarts, faults of the object store.
//!
//! The interleavings are forced where they matter; nothing waits for time to pass.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test's helpers may fail the test"
)]

/// Makes a test of each case on each store.
macro_rules! on_stores {
    ($($name:ident),* $(,)?) => {
        on_stores! { @on memory, Memory, $($name),* }
        on_stores! { @on sqlite, Sqlite, $($name),* }
        on_stores! { @on postgres, Postgres, $($name),* }
    };
    (@on $module:ident, $on:ident, $($name:ident),*) => {
        mod $module {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name($crate::support::on::On::$on).await;
            })*
        }
    };
}

#[path = "events/appends.rs"]
mod appends;
#[path = "events/batches.rs"]
mod batches;
#[path = "events/faults.rs"]
mod faults;
#[path = "events/processes.rs"]
mod processes;
mod support;
#[path = "events/world.rs"]
mod world;
