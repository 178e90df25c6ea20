//! The worker on the oracle: how attempts end, and what is recorded of each.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onceward::core::audit::Trace;
use onceward::core::decide::{Enqueue, NewJob, Resolution, Resolved};
use onceward::core::key::Subject;
use onceward::core::record::{OnAbandoned, Record, State};
use onceward::core::retry::{Backoff, JOB_BACKOFF};
use onceward::engine::Engine;
use onceward::store::memory::MemoryStore;
use onceward::store::{AuditFilter, Items, List};
use onceward::worker::{
    Builder, Context, Done, Event, Happened, Job, JobError, Probe, Step, Worker,
};
use tokio::sync::{Notify, mpsc};

const QUICK: Backoff = Backoff { first_ms: 1, max_ms: 5, ..JOB_BACKOFF };
/// Longer than any test should take: a test that waits this long has failed.
const LONG: Duration = Duration::from_secs(20);

fn engine() -> Engine {
    Engine::new(Arc::new(MemoryStore::new()))
}

fn job(id: &str) -> NewJob {
    Job::new("acme", "mail", "send").resource(id).payload(id.as_bytes()).build().unwrap()
}

/// A worker that tells a channel what happens.
fn heard(builder: Builder) -> (Builder, mpsc::UnboundedReceiver<Event>) {
    let (told, events) = mpsc::unbounded_channel();
    let builder = builder.on_event(move |event| drop(told.send(event.clone())));
    (builder, events)
}

async fn until(
    events: &mut mpsc::UnboundedReceiver<Event>,
    wanted: impl Fn(&Happened) -> bool,
) -> Event {
    let wait = async {
        loop {
            let event = events.recv().await.unwrap();
            if wanted(&event.happened) {
                return event;
            }
        }
    };
    tokio::time::timeout(LONG, wait).await.unwrap()
}

async fn record(engine: &Engine, job: &NewJob) -> Record {
    engine.look(&job.key).await.unwrap().unwrap().stored.record
}

async fn audited(engine: &Engine, action: &str) -> Vec<onceward::core::audit::Audited> {
    let filter = AuditFilter { action: Some(action.into()), ..AuditFilter::default() };
    let Items::Audit(entries) = engine.list(List::Audit(filter), None, 100).await.unwrap().items
    else {
        panic!("not audit");
    };
    entries
}

fn is_done(happened: &Happened) -> bool {
    *happened == Happened::Done
}

#[tokio::test]
async fn a21_what_a_handler_hands_back_commits_with_the_job() {
    let engine = engine();
    let builder =
        Worker::builder(engine.clone()).queue("mail").handler(|job: Context| async move {
            assert_eq!((&*job.tenant(), &*job.queue(), &*job.job_type()), ("acme", "mail", "send"));
            assert_eq!(job.effect_key(), "job:acme:mail:send:a");
            assert_eq!((job.attempt(), job.is_again()), (1, false));
            assert_eq!(job.correlation_id(), Some("c-1"));
            job.check()?;
            let seen = job.read("sent", "a").await?;
            let mut done = Done::new().outcome("sent");
            done.put(&seen, job.payload().clone())?;
            done.enqueue(Job::new("acme", "search", "index").resource("a@1").build()?);
            done.audit(job.entry("mail.sent"));
            Ok::<_, JobError>(done)
        });
    let (builder, mut events) = heard(builder);
    let worker = builder.start().unwrap();
    let mut a = job("a");
    a.trace = Trace { correlation_id: Some("c-1".into()), ..Trace::default() };
    engine.enqueue(&a).await.unwrap();
    let done = until(&mut events, is_done).await;
    assert_eq!((done.key.clone(), done.attempt), (a.key.clone(), 1));
    let found = engine.look(&a.key).await.unwrap().unwrap();
    assert_eq!(found.stored.record.state, State::Done);
    assert_eq!(found.stored.outcome.as_deref(), Some(&b"sent"[..]));
    let sent = engine.get(&Subject::new("acme", "sent", "a").unwrap()).await.unwrap().unwrap();
    assert_eq!(&*sent.value, b"a");
    let next = Job::new("acme", "search", "index").resource("a@1").build().unwrap();
    let next = record(&engine, &next).await;
    assert_eq!(next.state, State::Pending);
    assert_eq!(next.trace.correlation_id.as_deref(), Some("c-1"), "passed on");
    assert_eq!(audited(&engine, "mail.sent").await[0].entry.fence, Some(done.fence));
    assert_eq!(audited(&engine, "job.done").await.len(), 1);
    assert_eq!(worker.drain(LONG).await.cut, 0);
    assert_eq!(engine.enqueue(&a).await.map(|a| matches!(a, Enqueue::There(_))).ok(), Some(true));
}

#[tokio::test]
async fn a20_retries_keep_the_key_and_end_in_the_dead_letter_queue_with_a22s_facts() {
    let engine = engine();
    let tries = Arc::new(Mutex::new(Vec::new()));
    let seen = tries.clone();
    let builder = Worker::builder(engine.clone()).queue("mail").backoff(QUICK).handler(
        move |job: Context| {
            let correlation = job.correlation_id().map(String::from);
            seen.lock().unwrap().push((job.attempt(), job.fence(), job.effect_key(), correlation));
            async { Err::<(), _>(JobError::retryable("the post office is closed")) }
        },
    );
    let (builder, mut events) = heard(builder);
    let _worker = builder.start().unwrap();
    let mut a = job("a");
    a.trace.correlation_id = Some("c-1".into());
    engine.enqueue(&a).await.unwrap();
    until(&mut events, |happened| matches!(happened, Happened::Dead { .. })).await;
    let tries = tries.lock().unwrap().clone();
    let numbers: Vec<u32> = tries.iter().map(|(number, ..)| *number).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
    assert!(tries.windows(2).all(|pair| pair[0].1 < pair[1].1), "the fence rises: {tries:?}");
    assert!(tries.iter().all(|(.., key, id)| *key == tries[0].2 && id.as_deref() == Some("c-1")));
    let dead = record(&engine, &a).await;
    assert_eq!((dead.state, dead.attempt), (State::Dead, 5));
    assert_eq!(dead.error.as_deref(), Some("the post office is closed"));
    assert_eq!(dead.trace.correlation_id.as_deref(), Some("c-1"));
    let entry = audited(&engine, "job.dead").await.remove(0).entry;
    assert_eq!(&*entry.tenant, "acme");
    assert_eq!(entry.detail.as_deref(), Some("the post office is closed"));
    assert_eq!(entry.payload_hash.as_deref(), Some(&*a.fingerprint.to_string()));
    assert_eq!(entry.trace.correlation_id.as_deref(), Some("c-1"));
    assert_eq!(audited(&engine, "job.failed").await.len(), 4);
}

#[test]
fn a20_the_default_back_off_is_exponential_from_a_second_with_jitter_up_to_half() {
    for (attempt, base) in [(1, 1_000), (2, 2_000), (3, 4_000), (4, 8_000)] {
        assert_eq!(JOB_BACKOFF.delay_ms(attempt, 0), Some(base));
        assert_eq!(JOB_BACKOFF.delay_ms(attempt, u64::MAX), Some(base + base / 2));
    }
    assert_eq!(JOB_BACKOFF.delay_ms(5, 0), None);
}

#[tokio::test]
async fn a22_a_permanent_error_is_poison_at_once_and_can_be_retried_or_discarded_by_hand() {
    let engine = engine();
    let broken = Arc::new(AtomicUsize::new(2));
    let left = broken.clone();
    let builder =
        Worker::builder(engine.clone()).queue("mail").handler(move |_: Context| {
            let fails = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
            async move {
                if fails.is_ok() { Err(JobError::permanent("no such address")) } else { Ok(()) }
            }
        });
    let (builder, mut events) = heard(builder);
    let _worker = builder.start().unwrap();
    engine.enqueue_many(&[job("a"), job("b")]).await;
    for _ in 0..2 {
        until(&mut events, |happened| matches!(happened, Happened::Dead { .. })).await;
    }
    let rerun = Resolution::Rerun { force: false };
    let by = Trace { actor: Some("operator".into()), ..Trace::default() };
    assert_eq!(engine.resolve(&job("a").key, &rerun, &by).await.unwrap(), Resolved::Ok);
    let done = until(&mut events, is_done).await;
    assert_eq!(done.key, job("a").key, "identity is kept");
    let discard = engine.resolve(&job("b").key, &Resolution::Discard, &by).await;
    assert_eq!(discard.unwrap(), Resolved::Ok);
    assert!(engine.look(&job("b").key).await.unwrap().is_none());
}

#[tokio::test]
async fn h5_a_job_under_hold_whose_handler_breaks_off_waits_for_a_person() {
    for panics in [true, false] {
        let engine = engine();
        let ran = Arc::new(AtomicU32::new(0));
        let counts = ran.clone();
        let builder = Worker::builder(engine.clone())
            .queue("mail")
            .backoff(QUICK)
            .time_limit(Duration::from_millis(50))
            .handler(move |_: Context| {
                counts.fetch_add(1, Ordering::SeqCst);
                async move {
                    assert!(!panics, "charged, and broken off");
                    std::future::pending::<Result<(), JobError>>().await
                }
            });
        let (builder, mut events) = heard(builder);
        let worker = builder.start().unwrap();
        let mut job = job("a");
        job.terms.on_abandoned = OnAbandoned::Hold;
        engine.enqueue(&job).await.unwrap();
        until(&mut events, |happened| matches!(happened, Happened::Unknown { .. })).await;
        let held = record(&engine, &job).await;
        assert_eq!((held.state, held.attempt), (State::Unknown, 1), "{held:?}");
        assert_eq!(audited(&engine, "job.unknown").await.len(), 1);
        let counts = worker.counts();
        assert_eq!((counts.unknown, counts.failed, ran.load(Ordering::SeqCst)), (1, 0, 1));
        worker.drain(LONG).await;
    }
}

#[tokio::test]
async fn a_panic_is_a_failure_and_a_time_to_run_at_is_kept() {
    let engine = engine();
    let builder = Worker::builder(engine.clone()).queue("mail").backoff(QUICK).handler(
        |job: Context| async move {
            match job.attempt() {
                1 => panic!("boom"),
                2 => Err(JobError::run_in(Duration::from_millis(3), "not yet")),
                3 => {
                    let now = job.engine().now().await?;
                    Err(JobError::run_at(now.plus(4), "nor now"))
                }
                _ => Ok(()),
            }
        },
    );
    let (builder, mut events) = heard(builder);
    let _worker = builder.start().unwrap();
    engine.enqueue(&job("a")).await.unwrap();
    let failed = |happened: &Happened| matches!(happened, Happened::Failed { .. });
    let Happened::Failed { error, .. } = until(&mut events, failed).await.happened else {
        unreachable!()
    };
    assert_eq!(error, "the handler panicked: boom");
    let Happened::Failed { again_in, .. } = until(&mut events, failed).await.happened else {
        unreachable!()
    };
    assert_eq!(again_in, Duration::from_millis(3));
    let Happened::Failed { again_in, .. } = until(&mut events, failed).await.happened else {
        unreachable!()
    };
    assert!(again_in <= Duration::from_millis(4));
    assert_eq!(until(&mut events, is_done).await.attempt, 4);
}

#[tokio::test]
async fn a_probe_is_asked_before_a_job_is_tried_again() {
    let engine = engine();
    let runs = Arc::new(AtomicU32::new(0));
    let ran = runs.clone();
    let builder = Worker::builder(engine.clone())
        .queue("mail")
        .backoff(QUICK)
        .handler(move |_: Context| {
            ran.fetch_add(1, Ordering::SeqCst);
            async { Err::<(), _>(JobError::retryable("the connection broke after the request")) }
        })
        .probe(|job: Context| async move {
            assert_eq!(job.last_error(), Some("the connection broke after the request"));
            Ok(match job.attempt() {
                2 => Probe::NotHappened,
                _ => Probe::Happened(Done::new().outcome("found")),
            })
        });
    let (builder, mut events) = heard(builder);
    let _worker = builder.start().unwrap();
    engine.enqueue(&job("a")).await.unwrap();
    assert_eq!(until(&mut events, is_done).await.attempt, 3);
    assert_eq!(runs.load(Ordering::SeqCst), 2, "the third attempt only looked");
}

#[tokio::test]
async fn a_handler_whose_documents_changed_runs_again_and_sees_them() {
    let engine = engine();
    let counter = Subject::new("acme", "counts", "all").unwrap();
    let of = counter.clone();
    let builder = Worker::builder(engine.clone()).queue("mail").handler(move |job: Context| {
        let counter = of.clone();
        async move {
            let seen = job.read("counts", "all").await?;
            if seen.version == 0 {
                // Someone else writes between our look and our commit.
                job.engine().put(&counter, 0, Some(b"10"[..].into())).await?;
            }
            let count: u32 = seen
                .value
                .as_ref()
                .map_or(0, |value| std::str::from_utf8(value).unwrap().parse().unwrap());
            let mut done = Done::new();
            done.put(&seen, (count + 1).to_string().into_bytes())?;
            Ok::<_, JobError>(done)
        }
    });
    let (builder, mut events) = heard(builder);
    let _worker = builder.start().unwrap();
    engine.enqueue(&job("a")).await.unwrap();
    until(&mut events, |happened| *happened == Happened::Overtaken).await;
    assert_eq!(until(&mut events, is_done).await.attempt, 1);
    assert_eq!(&*engine.get(&counter).await.unwrap().unwrap().value, b"11");
}

/// Counts how many run at once, and holds them until told to go on.
#[derive(Default)]
struct Gauge {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Gauge {
    async fn stay(&self) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        self.now.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn limits_hold_in_all_and_per_tenant_and_nothing_is_left() {
    let engine = engine();
    let (all, acme) = (Arc::new(Gauge::default()), Arc::new(Gauge::default()));
    let gauges = (all.clone(), acme.clone());
    let builder = Worker::builder(engine.clone())
        .queue("mail")
        .concurrency(5)
        .concurrency_per_tenant(2)
        .handler(move |job: Context| {
            let (all, acme) = gauges.clone();
            async move {
                if job.tenant() == "acme" {
                    tokio::join!(all.stay(), acme.stay());
                } else {
                    all.stay().await;
                }
                Ok::<_, JobError>(())
            }
        });
    let (builder, mut events) = heard(builder);
    let jobs: Vec<NewJob> = (0..60)
        .map(|n| {
            let tenant = ["acme", "globex", "initech"][n % 3];
            Job::new(tenant, "mail", "send").resource(n.to_string()).build().unwrap()
        })
        .collect();
    engine.enqueue_many(&jobs).await;
    let _worker = builder.start().unwrap();
    for _ in 0..60 {
        until(&mut events, is_done).await;
    }
    assert_eq!(acme.most.load(Ordering::SeqCst), 2);
    assert_eq!(all.most.load(Ordering::SeqCst), 5);
}

#[tokio::test]
async fn jobs_of_one_subject_run_in_order_one_at_a_time() {
    let engine = engine();
    let order = Arc::new(Mutex::new(Vec::new()));
    let (gauge, seen) = (Arc::new(Gauge::default()), order.clone());
    let running = gauge.clone();
    let builder = Worker::builder(engine.clone()).queue("mail").handler(move |job: Context| {
        let (gauge, seen) = (running.clone(), seen.clone());
        async move {
            gauge.stay().await;
            seen.lock().unwrap().push(job.resource().into_owned());
            Ok::<_, JobError>(())
        }
    });
    let (builder, mut events) = heard(builder);
    let _worker = builder.start().unwrap();
    for n in 0..20 {
        let job = Job::new("acme", "mail", "send").resource(n.to_string()).subject("mission/7");
        engine.enqueue(&job.build().unwrap()).await.unwrap();
    }
    for _ in 0..20 {
        until(&mut events, is_done).await;
    }
    assert_eq!(gauge.most.load(Ordering::SeqCst), 1);
    let wanted: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    assert_eq!(*order.lock().unwrap(), wanted);
}

#[tokio::test]
async fn a_drain_lets_handlers_end_and_cuts_those_that_do_not() {
    let engine = engine();
    let (go, started) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (gate, sign) = (go.clone(), started.clone());
    let builder = Worker::builder(engine.clone()).queue("mail").handler(move |job: Context| {
        let (gate, sign) = (gate.clone(), sign.clone());
        async move {
            sign.notify_one();
            if job.resource() == "ends" {
                gate.notified().await;
            } else {
                std::future::pending::<()>().await;
            }
            Ok::<_, JobError>(())
        }
    });
    let worker = builder.start().unwrap();
    engine.enqueue(&job("ends")).await.unwrap();
    started.notified().await;
    let (drained, ()) = tokio::join!(worker.drain(LONG), async { go.notify_one() });
    assert_eq!(drained.cut, 0);
    assert_eq!(record(&engine, &job("ends")).await.state, State::Done);

    let sign = started.clone();
    let hangs = Worker::builder(engine.clone()).queue("mail").handler(move |_: Context| {
        sign.notify_one();
        std::future::pending::<Result<(), JobError>>()
    });
    let worker = hangs.start().unwrap();
    engine.enqueue(&job("hangs")).await.unwrap();
    started.notified().await;
    assert_eq!(worker.drain(Duration::ZERO).await.cut, 1);
    let left = record(&engine, &job("hangs")).await;
    assert_eq!((left.state, left.attempt), (State::Failed, 1));
    engine.enqueue(&job("later")).await.unwrap();
    assert_eq!(record(&engine, &job("later")).await.state, State::Pending, "nobody takes");
}

#[tokio::test]
async fn a_paused_queue_gives_nothing_until_it_is_resumed() {
    let engine = engine();
    let by = Trace::default();
    engine.set_paused("mail", true, &by).await.unwrap();
    let builder =
        Worker::builder(engine.clone()).queue("mail").handler(|_: Context| async { Ok(()) });
    let (builder, mut events) = heard(builder);
    let worker = builder.start().unwrap();
    engine.enqueue(&job("a")).await.unwrap();
    engine.enqueue(&Job::new("acme", "other", "x").build().unwrap()).await.unwrap();
    assert_eq!(worker.counts().taken, 0);
    engine.set_paused("mail", false, &by).await.unwrap();
    until(&mut events, is_done).await;
}

#[tokio::test]
async fn i05_a_late_attempt_is_refused_with_a_typed_error_and_that_is_recorded() {
    let (store, clock) = MemoryStore::manual(onceward::core::stamp::At(1_700_000_000_000));
    let store = Arc::new(store);
    let engine = Engine::new(store.clone());
    let (entered, second) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    // The other worker is another process: where the first attempt lives, nobody takes it over.
    let worker = |engine: Engine| {
        let (bell, go, clock) = (entered.clone(), second.clone(), clock.clone());
        let handler = move |job: Context| {
            let (bell, go, clock) = (bell.clone(), go.clone(), clock.clone());
            async move {
                if job.attempt() == 1 {
                    // For the store the lease is over, while this process believes in it.
                    clock.advance(60_001);
                    bell.notify_one();
                    go.notified().await;
                }
                let outcome = format!("attempt {}", job.attempt());
                Ok::<_, JobError>(Done::new().outcome(outcome))
            }
        };
        heard(Worker::builder(engine).queue("mail").lease(Duration::from_secs(60)).handler(handler))
    };
    let (builder, mut events) = worker(engine.clone());
    let _worker = builder.start().unwrap();
    engine.enqueue(&job("a")).await.unwrap();
    entered.notified().await;
    let (builder, mut others) = worker(Engine::new(store));
    let _other = builder.start().unwrap();
    assert_eq!(until(&mut others, is_done).await.attempt, 2);
    second.notify_one();
    let refused = |happened: &Happened| *happened == Happened::Refused(Step::Complete);
    assert_eq!(until(&mut events, refused).await.attempt, 1);
    let found = engine.look(&job("a").key).await.unwrap().unwrap();
    assert_eq!(found.stored.outcome.as_deref(), Some(&b"attempt 2"[..]));
    let recorded = async {
        loop {
            if let Some(entry) = audited(&engine, "job.refused").await.pop() {
                return entry.entry;
            }
            tokio::task::yield_now().await;
        }
    };
    let entry = tokio::time::timeout(LONG, recorded).await.unwrap();
    assert_eq!(entry.detail.as_deref(), Some("complete was refused: the attempt was overtaken"));
}

#[tokio::test]
async fn recurring_work_runs_once_per_period_among_many_processes() {
    let (store, clock) = MemoryStore::manual(onceward::core::stamp::At(7_200_000));
    let store = Arc::new(store);
    let runs = Arc::new(Mutex::new(Vec::new()));
    let (told, mut ended) = mpsc::unbounded_channel();
    let start = |_: usize| {
        let (runs, told) = (runs.clone(), told.clone());
        Worker::builder(Engine::new(store.clone()))
            .every(Duration::from_secs(3_600), "sweep", move |job: Context| {
                let (runs, told) = (runs.clone(), told.clone());
                async move {
                    runs.lock().unwrap().push(job.resource().into_owned());
                    told.send(()).unwrap();
                    Ok::<_, JobError>(())
                }
            })
            .start()
            .unwrap()
    };
    let first: Vec<Worker> = (0..4).map(start).collect();
    tokio::time::timeout(LONG, ended.recv()).await.unwrap();
    for worker in first {
        worker.drain(LONG).await;
    }
    clock.advance(3_600_000);
    let second: Vec<Worker> = (0..4).map(start).collect();
    tokio::time::timeout(LONG, ended.recv()).await.unwrap();
    for worker in second {
        worker.drain(LONG).await;
    }
    assert_eq!(*runs.lock().unwrap(), ["2", "3"]);
    let engine = Engine::new(store);
    assert_eq!(audited(&engine, "job.done").await.len(), 2, "each run has its entry");
}

#[tokio::test]
async fn tenants_take_turns_when_one_has_a_long_queue() {
    let engine = engine();
    let many: Vec<NewJob> = (0..2_000)
        .map(|n| Job::new("noisy", "mail", "send").resource(format!("{n:03}")).build().unwrap())
        .collect();
    engine.enqueue_many(&many).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let seen = order.clone();
    let builder = Worker::builder(engine.clone()).queue("mail").concurrency(30).handler(
        move |job: Context| {
            seen.lock().unwrap().push(job.tenant().into_owned());
            async { Ok(()) }
        },
    );
    let quiet: Vec<NewJob> = (0..3)
        .map(|n| Job::new("quiet", "mail", "send").resource(n.to_string()).build().unwrap())
        .collect();
    engine.enqueue_many(&quiet).await;
    let (builder, mut events) = heard(builder);
    let _worker = builder.start().unwrap();
    for _ in 0..2_003 {
        until(&mut events, is_done).await;
    }
    let last = order.lock().unwrap().iter().rposition(|tenant| tenant == "quiet").unwrap();
    assert!(last < 30, "the quiet tenant is served in the first take, not after the noisy one");
}
