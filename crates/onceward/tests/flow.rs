//! From the event store to a view: relay, log, consumer, projection, on real stores and servers.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

mod support;

#[path = "postgres/cluster.rs"]
#[allow(dead_code, reason = "each test binary uses its own part of this")]
mod cluster;
#[path = "flow/consumers.rs"]
mod consumers;
#[path = "flow/outage.rs"]
mod outage;
#[path = "flow/relays.rs"]
mod relays;
#[path = "flow/stopped.rs"]
mod stopped;
#[path = "flow/together.rs"]
mod together;
#[path = "flow/views.rs"]
mod views;
#[path = "flow/world.rs"]
mod world;

/// Makes a test of each case on SQLite and on Postgres, the embedded log over a folder.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $name() {
                super::$name($crate::support::on::On::Sqlite).await;
            })*
        }
        mod postgres {
            $(#[tokio::test]
            async fn $name() {
                super::$name($crate::support::on::On::Postgres).await;
            })*
        }
    };
}
pub(crate) use on_both;
