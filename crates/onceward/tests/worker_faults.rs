//! The worker when things go wrong: lost answers, lost leases, stalled attempts.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onceward::core::batch::{Batch, Write};
use onceward::core::decide::{Completion, Finish, NewJob, Retry};
use onceward::core::key::{Key, Subject};
use onceward::core::record::{FenceWrite, State, Terms};
use onceward::core::retry::{Backoff, JOB_BACKOFF};
use onceward::core::stamp::At;
use onceward::engine::{Engine, EngineOptions, Take};
use onceward::store::memory::MemoryStore;
use onceward::store::{
    Capabilities, Committed, Cursor, Items, List, Loaded, Page, Read, Store, StoreError,
    StoreFuture,
};
use onceward::testing::faulty::{FaultPlan, FaultyStore};
use onceward::worker::{Context, Cut, Done, Event, Happened, Job, JobError, Step, Worker};
use tokio::sync::{Notify, mpsc};

const START: At = At(1_700_000_000_000);
const QUICK: Backoff = Backoff { first_ms: 1, max_ms: 5, ..JOB_BACKOFF };
/// Longer than any test should take: a test that waits this long has failed.
const LONG: Duration = Duration::from_secs(60);

async fn until(
    events: &mut mpsc::UnboundedReceiver<Event>,
    wanted: impl Fn(&Event) -> bool,
) -> Event {
    let wait = async {
        loop {
            let event = events.recv().await.unwrap();
            if wanted(&event) {
                return event;
            }
        }
    };
    tokio::time::timeout(LONG, wait).await.unwrap()
}

/// A store whose answers to renewals are lost while it is told so.
struct DeafToRenewals {
    inner: MemoryStore,
    deaf: Arc<AtomicBool>,
}

fn is_renewal(batch: &Batch) -> bool {
    batch.writes.iter().any(|write| {
        matches!(write, Write::Put(draft)
            if draft.fence == FenceWrite::Keep && draft.record.state == State::Running)
    })
}

impl Store for DeafToRenewals {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn load(&self, reads: Vec<Read>) -> StoreFuture<'_, Loaded> {
        self.inner.load(reads)
    }
    fn commit(&self, group: Vec<Arc<Batch>>) -> StoreFuture<'_, Committed> {
        Box::pin(async move {
            let lost = self.deaf.load(Ordering::SeqCst) && group.iter().any(|b| is_renewal(b));
            let committed = self.inner.commit(group).await?;
            if lost { Err(StoreError::Unknown("lost".into())) } else { Ok(committed) }
        })
    }
    fn list(&self, what: List, after: Option<Cursor>, limit: usize) -> StoreFuture<'_, Page> {
        self.inner.list(what, after, limit)
    }
    fn watch(&self, keys: Vec<Key>) -> StoreFuture<'_, ()> {
        self.inner.watch(keys)
    }
    fn close(&self) -> StoreFuture<'_, ()> {
        self.inner.close()
    }
}

struct OnDrop(mpsc::UnboundedSender<()>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

#[tokio::test]
async fn i07_a_lost_answer_on_renewal_cuts_the_handler_before_its_next_effect() {
    let deaf = Arc::new(AtomicBool::new(true));
    let store = DeafToRenewals { inner: MemoryStore::new(), deaf: deaf.clone() };
    let options =
        EngineOptions { resend_for: Duration::from_millis(50), ..EngineOptions::default() };
    let engine = Engine::with_options(Arc::new(store), options);
    let (dropped, mut drops) = mpsc::unbounded_channel();
    let (told, mut events) = mpsc::unbounded_channel();
    let effects = Arc::new(AtomicUsize::new(0));
    let counted = effects.clone();
    let _worker = Worker::builder(engine.clone())
        .queue("mail")
        .lease(Duration::from_millis(600))
        .handler(move |job: Context| {
            let (guard, effects) = (OnDrop(dropped.clone()), counted.clone());
            async move {
                let _guard = guard;
                if job.attempt() == 1 {
                    job.cut().await;
                    // Never reached: whoever is cut is not polled again.
                    effects.fetch_add(100, Ordering::SeqCst);
                }
                job.check()?;
                effects.fetch_add(1, Ordering::SeqCst);
                Ok::<_, JobError>(())
            }
        })
        .on_event(move |event| drop(told.send(event.clone())))
        .start()
        .unwrap();
    engine.enqueue(&Job::new("acme", "mail", "send").build().unwrap()).await.unwrap();
    let cut = |event: &Event| matches!(event.happened, Happened::Cut(_));
    let cut = until(&mut events, cut).await;
    assert_eq!((cut.attempt, cut.happened), (1, Happened::Cut(Cut::Lapsed)));
    drops.recv().await.unwrap();
    deaf.store(false, Ordering::SeqCst);
    let done = until(&mut events, |event| event.happened == Happened::Done).await;
    assert!(done.attempt >= 2);
    assert_eq!(effects.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn i06_the_fence_belongs_to_the_attempt_and_not_to_the_worker() {
    let (store, clock) = MemoryStore::manual(START);
    let engine = Engine::new(Arc::new(store));
    engine.enqueue(&Job::new("acme", "mail", "send").build().unwrap()).await.unwrap();
    let take = Take { queue: "mail".into(), owner: "w".into(), max: 1, lease_ms: Some(1_000) };
    let old = engine.take(&take).await.unwrap().remove(0).permit;
    clock.advance(1_000);
    let new = engine.take(&take).await.unwrap().remove(0).permit;
    assert!(new.fence > old.fence);
    let done = Completion::new([].into());
    assert_eq!(engine.renew(&old, None).await.unwrap(), Finish::Lost);
    assert_eq!(engine.complete(&old, &done).await.unwrap(), Finish::Lost);
    assert_eq!(engine.fail(&old, "late", Retry::In(0)).await.unwrap(), Finish::Lost);
    assert_eq!(engine.release(&old).await.unwrap(), Finish::Lost);
    assert_eq!(engine.renew(&new, None).await.unwrap(), Finish::Ok);
    assert_eq!(engine.complete(&new, &done).await.unwrap(), Finish::Ok);
}

#[tokio::test]
async fn i28_a_stalled_lower_number_never_takes_effect_after_a_higher_one() {
    let (store, clock) = MemoryStore::manual(START);
    let store = Arc::new(store);
    let (stalled, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (told, mut events) = mpsc::unbounded_channel();
    let start = |engine: &Engine| {
        let (told, clock) = (told.clone(), clock.clone());
        let (stalled, go) = (stalled.clone(), go.clone());
        Worker::builder(engine.clone())
            .queue("mail")
            .lease(Duration::from_secs(60))
            .handler(move |job: Context| {
                let (stalled, go, clock) = (stalled.clone(), go.clone(), clock.clone());
                async move {
                    let seen = job.read("last", "mission/7").await?;
                    if job.resource() == "1" && job.attempt() == 1 {
                        clock.advance(60_001);
                        stalled.notify_one();
                        go.notified().await;
                    }
                    let mut done = Done::new();
                    done.put(&seen, job.resource().as_bytes())?;
                    Ok::<_, JobError>(done)
                }
            })
            .on_event(move |event| drop(told.send(event.clone())))
            .start()
            .unwrap()
    };
    let engine = Engine::new(store.clone());
    for number in ["1", "2"] {
        let job = Job::new("acme", "mail", "send").resource(number).subject("mission/7");
        engine.enqueue(&job.build().unwrap()).await.unwrap();
    }
    let _first = start(&engine);
    stalled.notified().await;
    let _second = start(&Engine::new(store));
    for number in ["1", "2"] {
        let done = |event: &Event| event.happened == Happened::Done && event.key.id() == number;
        until(&mut events, done).await;
    }
    go.notify_one();
    let refused = |event: &Event| {
        matches!(event.happened, Happened::Refused(Step::Complete) | Happened::Overtaken)
    };
    assert_eq!(until(&mut events, refused).await.attempt, 1);
    let last = engine.get(&Subject::new("acme", "last", "mission/7").unwrap()).await.unwrap();
    assert_eq!(&*last.unwrap().value, b"2");
}

fn writes(count: usize) -> Vec<NewJob> {
    let terms = Terms { max_attempts: 0, lease_ms: 500, ..Terms::job() };
    let job = |n: usize| Job::new("acme", "write", "save").resource(n.to_string()).terms(terms);
    (0..count).map(|n| job(n).build().unwrap()).collect()
}

async fn all(engine: &Engine, what: List) -> Items {
    engine.list(what, None, 1_000).await.unwrap().items
}

#[tokio::test]
async fn i11_what_is_committed_is_published_and_nothing_else_under_faults() {
    const JOBS: usize = 60;
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let faulty = Arc::new(FaultyStore::new(memory.clone(), FaultPlan::Quiet));
    let options =
        EngineOptions { resend_for: Duration::from_millis(20), ..EngineOptions::default() };
    let engine = Engine::with_options(faulty.clone(), options);
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    for answer in engine.enqueue_many(&writes(JOBS)).await {
        answer.unwrap();
    }
    faulty.set_plan(FaultPlan::Seeded { seed: 7, per_mille: 300 });
    let worker = Worker::builder(engine.clone())
        .queue("write")
        .backoff(QUICK)
        .handler(move |job: Context| {
            let run = counted.fetch_add(1, Ordering::SeqCst);
            async move {
                let seen = job.read("doc", &job.resource()).await?;
                let follow = Job::new("acme", "index", "index");
                let follow = follow.resource(format!("{}@{}", job.resource(), seen.version + 1));
                let mut done = Done::new();
                done.put(&seen, job.resource().as_bytes())?;
                done.enqueue(follow.subject("all").build()?);
                done.audit(job.entry("doc.saved"));
                if run % 5 == 4 {
                    // Rolled back with everything that it prepared.
                    return Err(JobError::retryable("changed its mind"));
                }
                Ok(done)
            }
        })
        .start()
        .unwrap();
    let finished = async {
        while worker.counts().done < (JOBS as u64) / 2 {
            tokio::task::yield_now().await;
        }
        faulty.set_plan(FaultPlan::Quiet);
        let sound = Engine::new(memory.clone());
        loop {
            let state = Some(State::Done);
            let what = List::Records { tenant: None, scope: Some("write".into()), state };
            if matches!(all(&sound, what).await, Items::Records(done) if done.len() == JOBS) {
                return sound;
            }
            tokio::task::yield_now().await;
        }
    };
    let sound = tokio::time::timeout(LONG, finished).await.unwrap();
    assert!(faulty.injected().faults() > 10, "{:?}", faulty.injected());
    let marks = List::Marks { tenant: Some("acme".into()), prefix: "doc:".into() };
    let Items::Marks(documents) = all(&sound, marks).await else { panic!("not marks") };
    assert_eq!(documents.len(), JOBS);
    assert!(documents.iter().all(|(_, mark)| mark.position == 1), "each written once");
    let what = List::Records { tenant: None, scope: Some("index".into()), state: None };
    let Items::Records(published) = all(&sound, what).await else { panic!("not records") };
    assert_eq!(published.len(), JOBS, "one for each write that committed, none for others");
    let filter = onceward::store::AuditFilter {
        action: Some("doc.saved".into()),
        ..onceward::store::AuditFilter::default()
    };
    let Items::Audit(entries) = all(&sound, List::Audit(filter)).await else { panic!("audit") };
    assert_eq!(entries.len(), JOBS);
}

#[tokio::test]
async fn a_take_that_is_dropped_gives_back_what_it_had() {
    let (store, _clock) = MemoryStore::manual(START);
    let store: Arc<dyn Store> = Arc::new(store);
    let held = Arc::new(HeldBack {
        inner: store.clone(),
        after: AtomicUsize::new(usize::MAX),
        reached: Notify::new(),
    });
    let engine = Engine::new(held.clone());
    engine.enqueue_many(&writes(300)).await;
    let take = Take { queue: "write".into(), owner: "w".into(), max: 300, lease_ms: Some(60_000) };
    // The first group of grants is answered, the second never.
    held.after.store(1, Ordering::SeqCst);
    let (taking, reached) = (engine.take(&take), held.reached.notified());
    tokio::select! {
        _ = taking => panic!("the second group has no answer"),
        () = reached => {}
    }
    held.after.store(usize::MAX, Ordering::SeqCst);
    let fresh = Engine::new(store);
    let free = async {
        let mut got = 0;
        while got < 256 {
            got += fresh.take(&take).await.unwrap().len();
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, free).await.unwrap();
}

/// Commits this many groups; the next ones hang until they are dropped.
struct HeldBack {
    inner: Arc<dyn Store>,
    after: AtomicUsize,
    reached: Notify,
}

impl Store for HeldBack {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn load(&self, reads: Vec<Read>) -> StoreFuture<'_, Loaded> {
        self.inner.load(reads)
    }
    fn commit(&self, group: Vec<Arc<Batch>>) -> StoreFuture<'_, Committed> {
        Box::pin(async move {
            let left = self.after.load(Ordering::SeqCst);
            if left == 0 {
                self.reached.notify_one();
                while self.after.load(Ordering::SeqCst) == 0 {
                    tokio::task::yield_now().await;
                }
            } else if left != usize::MAX {
                self.after.store(left - 1, Ordering::SeqCst);
            }
            self.inner.commit(group).await
        })
    }
    fn list(&self, what: List, after: Option<Cursor>, limit: usize) -> StoreFuture<'_, Page> {
        self.inner.list(what, after, limit)
    }
    fn watch(&self, keys: Vec<Key>) -> StoreFuture<'_, ()> {
        self.inner.watch(keys)
    }
    fn close(&self) -> StoreFuture<'_, ()> {
        self.inner.close()
    }
}

#[tokio::test]
async fn a_hot_subject_hides_nobody_behind_it() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let order = Arc::new(Mutex::new(Vec::new()));
    // Thousands of writes of one document wait; one of another is not behind them.
    let hot = Subject::new("acme", "doc", "hot").unwrap();
    let writes = (0..6_000).map(|_| {
        let (engine, hot, order) = (engine.clone(), hot.clone(), order.clone());
        async move {
            let _ = engine.put(&hot, 0, Some([].into())).await;
            order.lock().unwrap().push("hot");
        }
    });
    let other = async {
        let cold = Subject::new("acme", "doc", "cold").unwrap();
        engine.put(&cold, 0, Some([].into())).await.unwrap();
        order.lock().unwrap().push("cold");
    };
    tokio::join!(futures_util::future::join_all(writes), other);
    let order = order.lock().unwrap();
    let place = order.iter().position(|which| *which == "cold").unwrap();
    assert!(place < 100, "it went {place} places behind");
}
