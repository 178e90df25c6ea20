//! A load step: ten times the load for a while, then gone. What is offered afterwards is done in
//! time again.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use onceward::engine::Engine;
use onceward::store::sqlite::{SqliteOptions, SqliteStore};
use onceward::worker::{Context, Job, JobError, Worker};
use tokio::time::MissedTickBehavior;

/// Jobs per second before and after the step.
const OFFERED: u64 = 100;
/// How soon it has to be good again.
const WITHIN: Duration = Duration::from_secs(30);

/// Offers jobs at a pace.
struct Load {
    engine: Engine,
    made: AtomicU64,
}

impl Load {
    async fn second(self: &Arc<Self>, per_second: u64) {
        let mut ticks = tokio::time::interval(Duration::from_millis(10));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for _ in 0..100 {
            ticks.tick().await;
            for _ in 0..per_second / 100 {
                let number = self.made.fetch_add(1, Ordering::SeqCst);
                let this = self.clone();
                tokio::spawn(async move {
                    let job = Job::new("acme", "mail", "send").resource(number.to_string());
                    this.engine.enqueue(&job.build().unwrap()).await.unwrap();
                });
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i21_after_ten_times_the_load_it_is_good_again_within_30_seconds() {
    let folder = std::env::temp_dir().join(format!("onceward-load-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let store = SqliteStore::open(folder.join("load.db"), SqliteOptions::default()).unwrap();
    let engine = Engine::new(Arc::new(store));
    let worker = Worker::builder(engine.clone())
        .queue("mail")
        .handler(|_: Context| async { Ok::<_, JobError>(()) })
        .start()
        .unwrap();
    let load = Arc::new(Load { engine: engine.clone(), made: AtomicU64::new(0) });
    load.second(OFFERED).await;
    for _ in 0..3 {
        load.second(OFFERED * 10).await;
    }
    let removed = Instant::now();
    loop {
        let before = worker.counts().done;
        load.second(OFFERED).await;
        let done = worker.counts().done - before;
        let behind = load.made.load(Ordering::SeqCst) - worker.counts().done;
        // As much as is offered is done, and nothing is left from the step.
        if done * 100 >= OFFERED * 95 && behind * 100 <= OFFERED * 5 {
            break;
        }
        assert!(removed.elapsed() < WITHIN, "{done} done, {behind} behind after {WITHIN:?}");
    }
    worker.drain(WITHIN).await;
    engine.close().await.unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}
