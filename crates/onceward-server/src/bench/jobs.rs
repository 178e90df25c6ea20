//! `onceward bench jobs`: the life of a job with a handler that does nothing, durable and audited.
//!
//! Enqueues one by one and in batches; processing alone with one worker and with four; the whole
//! life at once; the time from an enqueue to the handler's start on an idle queue; and processing
//! with very many jobs waiting, beside the same on a queue that holds no others. Jobs are distinct,
//! so each is a record of its own, taken under a fence and completed under it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use onceward::engine::Engine;
use onceward::store::sqlite::{SqliteOptions, SqliteStore};
use onceward::store::{Items, List};
use onceward::worker::{Context, Job, JobError, Worker};
use onceward_core::audit::Trace;
use onceward_core::decide::{Enqueue, NewJob, Resolution};
use onceward_core::text::escape;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::load::Keys;
use super::measure::{Cpu, Latencies, ROUNDS, Round, Series};
use super::progress::Progress;
use super::report::Report;
use crate::failure::Failure;
use crate::open::{Access, StoreUrl};

/// Tasks that enqueue.
const CALLERS: u64 = 16;
/// Jobs of one batch.
const BATCH: u64 = 100;
/// Jobs that a worker runs at once, and takes at once.
const AT_ONCE: usize = 1_024;
const TAKE: usize = 512;
/// Jobs of which the way from enqueue to start is timed, in each round.
const PICKUPS: u64 = 100;
/// How long a worker may be without progress before the bench gives up.
const STUCK: Duration = Duration::from_secs(60);

/// What is to be measured, and how long.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) round: Duration,
    /// Jobs of a round that ends when they are done.
    pub(crate) jobs: u64,
    /// Jobs that wait while a round is measured.
    pub(crate) waiting: u64,
    /// Where other job queues are installed, if they are.
    #[cfg(feature = "postgres")]
    pub(crate) peers: Option<PathBuf>,
    pub(super) parts: super::Parts,
    pub(crate) progress: Progress,
}

/// Measures everything.
pub(crate) async fn measure(
    url: &StoreUrl,
    folder: Option<&Path>,
    plan: &Plan,
    report: &mut Report,
) -> Result<(), Failure> {
    let bench = Bench::new(url, folder, plan);
    let measured = async {
        if plan.parts.has("enqueue") {
            bench.enqueues(report).await?;
        }
        if plan.parts.has("process") {
            bench.processing(report).await?;
        }
        if plan.parts.has("pickup") {
            bench.pickup(report).await?;
        }
        if plan.waiting > 0 && plan.parts.has("waiting") {
            bench.with_many_waiting(report).await?;
        }
        #[cfg(feature = "postgres")]
        if let (Some(folder), StoreUrl::Postgres(url)) = (&plan.peers, url)
            && plan.parts.has("peers")
        {
            bench.beside_peers(super::peers::Peers::start(folder, url)?, report).await?;
        }
        Ok(())
    };
    let measured: Result<(), Failure> = measured.await;
    let erased = bench.erase().await;
    measured?;
    erased
}

/// Where it is measured: each part on a file of its own, or under a tenant of its own.
struct Bench<'p> {
    url: &'p StoreUrl,
    folder: Option<PathBuf>,
    tenant: String,
    plan: &'p Plan,
    keys: Arc<Keys>,
}

impl<'p> Bench<'p> {
    fn new(url: &'p StoreUrl, folder: Option<&Path>, plan: &'p Plan) -> Self {
        let started = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let seed = u64::from(std::process::id()) << 32 | started.unwrap_or_default().as_secs();
        let tenant = format!("onceward-bench-{seed:x}");
        let keys = Arc::new(Keys::new(&tenant, seed));
        Self { url, folder: folder.map(Path::to_path_buf), tenant, plan, keys }
    }

    /// An engine for one part.
    async fn queue(&self, name: &str) -> Result<Queue, Failure> {
        let engine = match &self.folder {
            Some(folder) => {
                let path = folder.join(format!("{name}.db"));
                Engine::new(Arc::new(SqliteStore::open(path, SqliteOptions::default())?))
            }
            None => Engine::new(self.url.open(Access::Write).await?),
        };
        let tenant = self.tenant.clone();
        Ok(Queue { engine, tenant, name: name.into(), keys: self.keys.clone() })
    }

    fn start(&self, part: &str, steps: usize) {
        self.plan.progress.part(part, u64::from(ROUNDS) * steps as u64);
    }

    async fn enqueues(&self, report: &mut Report) -> Result<(), Failure> {
        let queue = self.queue("enqueue").await?;
        let mut series = [
            Series::new("enqueue, one by one, 16 tasks"),
            Series::new("enqueue, batches of 100, 4 tasks"),
        ];
        self.start("enqueue", series.len());
        for _ in 0..ROUNDS {
            for (series, (tasks, batch)) in series.iter_mut().zip([(CALLERS, 1), (4, BATCH)]) {
                let before = Cpu::now();
                series.add(before, &queue.enqueue_for(self.plan.round, tasks, batch).await?);
                self.plan.progress.step();
            }
        }
        let [single, batches] = &series;
        report.add(&[single, batches]);
        report.part_ended("enqueue");
        queue.close().await
    }

    async fn processing(&self, report: &mut Report) -> Result<(), Failure> {
        let queue = self.queue("process").await?;
        let mut series = [
            Series::new("process, 1 worker"),
            Series::new("process, 4 workers"),
            Series::new("whole life, batches of 100, 1 worker"),
            Series::new("whole life, one by one from 16 tasks, 1 worker"),
        ];
        self.start("process", series.len());
        for _ in 0..ROUNDS {
            for (which, series) in series.iter_mut().enumerate() {
                if which < 2 {
                    queue.fill(self.plan.jobs).await?;
                }
                let before = Cpu::now();
                let round = match which {
                    0 => queue.process(self.plan.jobs, 1).await?,
                    1 => queue.process(self.plan.jobs, 4).await?,
                    2 => queue.whole_life(self.plan.jobs, 4, BATCH).await?,
                    _ => queue.whole_life(self.plan.jobs / 4, CALLERS, 1).await?,
                };
                series.add(before, &round);
                self.plan.progress.step();
            }
        }
        report.add(&series.each_ref());
        report.part_ended("process");
        queue.close().await
    }

    /// From the call of enqueue to the first line of the handler, when nothing else is to be done.
    async fn pickup(&self, report: &mut Report) -> Result<(), Failure> {
        let queue = self.queue("pickup").await?;
        let mut series = Series::new("pickup on an idle queue, from enqueue to start");
        self.start("pickup", 1);
        let (told, mut started) = mpsc::unbounded_channel();
        let worker = Worker::builder(queue.engine.clone()).queue(&queue.name);
        let worker = worker.handler(move |_: Context| {
            // The bench that has ended needs no answer.
            let _ = told.send(Instant::now());
            async { Ok::<_, JobError>(()) }
        });
        let worker = worker.start().map_err(|error| refused(&error))?;
        for _ in 0..ROUNDS {
            let before = Cpu::now();
            let begun = Instant::now();
            let mut round = Round::default();
            while round.operations < PICKUPS && begun.elapsed() < self.plan.round {
                let job = queue.job(queue.keys.draw())?;
                let asked = Instant::now();
                queue.engine.enqueue(&job).await?;
                let stuck = tokio::time::timeout(STUCK, started.recv()).await;
                let at = stuck.ok().flatten().ok_or_else(|| stuck_after(round.operations))?;
                round.latencies.add(at.saturating_duration_since(asked));
                round.operations += 1;
                while worker.running() > 0 {
                    tokio::task::yield_now().await;
                }
            }
            round.elapsed = begun.elapsed();
            series.add(before, &round);
            self.plan.progress.step();
        }
        worker.drain(STUCK).await;
        report.add(&[&series]);
        queue.close().await
    }

    async fn with_many_waiting(&self, report: &mut Report) -> Result<(), Failure> {
        let (deep, empty) = (self.queue("deep").await?, self.queue("empty").await?);
        let waiting = super::embedded::short(self.plan.waiting);
        let part = format!("making {waiting} jobs");
        self.plan.progress.part(&part, 1);
        deep.fill(self.plan.waiting).await?;
        let mut series = [
            Series::new("process, 1 worker, no others waiting"),
            Series::new(format!("process, 1 worker, {waiting} others waiting")),
        ];
        self.start("process with many waiting", series.len());
        for _ in 0..ROUNDS {
            for (series, queue) in series.iter_mut().zip([&empty, &deep]) {
                queue.fill(self.plan.jobs).await?;
                let before = Cpu::now();
                series.add(before, &queue.process(self.plan.jobs, 1).await?);
                self.plan.progress.step();
            }
        }
        let [alone, behind] = &series;
        report.add(&[alone, behind]);
        report.ratio(format!("at_{waiting}_vs_empty"), behind.versus(alone));
        report.part_ended("many waiting");
        deep.close().await?;
        empty.close().await
    }

    /// Single enqueues and processing, in rounds that alternate with those of other job queues.
    #[cfg(feature = "postgres")]
    async fn beside_peers(
        &self,
        mut peers: super::peers::Peers,
        report: &mut Report,
    ) -> Result<(), Failure> {
        use super::peers::NAMES;
        let queue = self.queue("peers").await?;
        let names = || std::iter::once("onceward").chain(NAMES);
        let named = |what: &str| -> Vec<Series> {
            names().map(|name| Series::new(format!("{what}, {name}"))).collect()
        };
        let mut enqueues = named("enqueue, one by one, 16 tasks");
        let mut processes = named("process, 1 worker");
        self.start("beside other job queues", 2 * enqueues.len());
        let (time, jobs) = (self.plan.round, self.plan.jobs);
        // First all of the one, then all of the other, so that neither follows on the other.
        for _ in 0..ROUNDS {
            for (name, series) in names().zip(&mut enqueues) {
                let before = Cpu::now();
                series.add(
                    before,
                    &match NAMES.contains(&name) {
                        true => peers.enqueue(name, time, CALLERS).await?,
                        false => queue.enqueue_for(time, CALLERS, 1).await?,
                    },
                );
                self.plan.progress.step();
            }
        }
        let left = queue.worker()?;
        queue.until_empty(left).await?;
        for _ in 0..ROUNDS {
            for (name, series) in names().zip(&mut processes) {
                let ours = !NAMES.contains(&name);
                if ours {
                    queue.fill(jobs).await?;
                }
                let before = Cpu::now();
                series.add(
                    before,
                    &match ours {
                        true => queue.process(jobs, 1).await?,
                        false => peers.process(name, jobs).await?,
                    },
                );
                self.plan.progress.step();
            }
        }
        report.add(&enqueues.iter().chain(&processes).collect::<Vec<_>>());
        for (ratio, series) in [("enqueue_vs_peers", &enqueues), ("jobs_vs_peers", &processes)] {
            let [ours, others @ ..] = series.as_slice() else { continue };
            // Beside the faster of them.
            report.ratio(
                ratio,
                others.iter().map(|other| ours.versus(other)).fold(f64::MAX, f64::min),
            );
        }
        report.part_ended("peers");
        peers.end().await?;
        queue.close().await
    }

    /// Erases what was made in a store that is not ours.
    async fn erase(&self) -> Result<(), Failure> {
        if self.folder.is_some() {
            return Ok(());
        }
        self.plan.progress.part("erasing what was made", 0);
        let engine = Engine::new(self.url.open(Access::Write).await?);
        let tenant = Some(escape(&self.tenant).into_owned());
        loop {
            let what = List::Records { tenant: tenant.clone(), scope: None, state: None };
            let Items::Records(records) = engine.list(what, None, 1_000).await?.items else {
                break;
            };
            if records.is_empty() {
                break;
            }
            let by = Trace::default();
            let erase = |key| engine.resolve(key, &Resolution::Erase, &by);
            for erased in join_all(records.iter().map(|record| erase(&record.key))).await {
                erased?;
            }
        }
        Ok(engine.close().await?)
    }
}

/// One queue and its engine.
#[derive(Clone)]
struct Queue {
    engine: Engine,
    tenant: String,
    name: String,
    keys: Arc<Keys>,
}

impl Queue {
    fn job(&self, number: u64) -> Result<NewJob, Failure> {
        let id = self.keys.id(number);
        let payload = format!(r#"{{"mission":"{id}","kind":"summary","priority":3,"try":true}}"#);
        let job = Job::new(&self.tenant, &self.name, "refresh").resource(id);
        Ok(job.payload(payload.into_bytes()).build()?)
    }

    async fn enqueue_batch(&self, batch: u64) -> Result<(), Failure> {
        if batch == 1 {
            return made(self.engine.enqueue(&self.job(self.keys.draw())?).await?);
        }
        let jobs = (0..batch).map(|_| self.job(self.keys.draw())).collect::<Result<Vec<_>, _>>()?;
        for answer in self.engine.enqueue_many(&jobs).await {
            made(answer?)?;
        }
        Ok(())
    }

    /// Many tasks enqueue for a time.
    async fn enqueue_for(&self, time: Duration, tasks: u64, batch: u64) -> Result<Round, Failure> {
        let started = Instant::now();
        let mut callers = JoinSet::new();
        for _ in 0..tasks {
            let this = self.clone();
            callers.spawn(async move {
                let mut round = Round::default();
                let mut before = started;
                while before.duration_since(started) < time {
                    this.enqueue_batch(batch).await?;
                    let after = Instant::now();
                    round.latencies.add(after - before);
                    round.operations += batch;
                    before = after;
                }
                round.elapsed = started.elapsed();
                Ok::<_, Failure>(round)
            });
        }
        let mut all = Round::default();
        while let Some(joined) = callers.join_next().await {
            all.join(&joined.map_err(|error| refused(&error))??);
        }
        Ok(all)
    }

    /// Makes jobs as fast as it goes.
    async fn fill(&self, count: u64) -> Result<(), Failure> {
        self.make(count, CALLERS, BATCH).await
    }

    async fn make(&self, count: u64, tasks: u64, batch: u64) -> Result<(), Failure> {
        let left = Arc::new(AtomicU64::new(count.div_ceil(batch)));
        let mut callers = JoinSet::new();
        for _ in 0..tasks {
            let (this, left) = (self.clone(), left.clone());
            callers.spawn(async move {
                let one = |left: u64| left.checked_sub(1);
                while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one).is_ok() {
                    this.enqueue_batch(batch).await?;
                }
                Ok::<_, Failure>(())
            });
        }
        while let Some(joined) = callers.join_next().await {
            joined.map_err(|error| refused(&error))??;
        }
        Ok(())
    }

    fn worker(&self) -> Result<Worker, Failure> {
        Worker::builder(self.engine.clone())
            .queue(&self.name)
            .concurrency(AT_ONCE)
            .take_max(TAKE)
            .handler(|_: Context| async { Ok::<_, JobError>(()) })
            .start()
            .map_err(|error| refused(&error))
    }

    /// Processes jobs that are there, until this many are recorded as done.
    async fn process(&self, jobs: u64, workers: usize) -> Result<Round, Failure> {
        let started = Instant::now();
        let workers = (0..workers).map(|_| self.worker()).collect::<Result<Vec<_>, _>>()?;
        self.until_done(jobs, workers, started).await
    }

    /// Makes and processes jobs at the same time.
    async fn whole_life(&self, jobs: u64, tasks: u64, batch: u64) -> Result<Round, Failure> {
        let started = Instant::now();
        let worker = self.worker()?;
        let jobs = jobs.div_ceil(batch) * batch;
        let (made, round) = tokio::join!(
            self.make(jobs, tasks, batch),
            self.until_done(jobs, vec![worker], started)
        );
        made?;
        round
    }

    async fn until_done(
        &self,
        jobs: u64,
        workers: Vec<Worker>,
        started: Instant,
    ) -> Result<Round, Failure> {
        let (mut last, mut moved) = (0, Instant::now());
        let done = loop {
            let done = workers.iter().map(|worker| worker.counts().done).sum::<u64>();
            if done >= jobs {
                break done;
            }
            if done > last {
                (last, moved) = (done, Instant::now());
            } else if moved.elapsed() > STUCK {
                return Err(stuck_after(done));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        let elapsed = started.elapsed();
        for worker in workers {
            worker.drain(STUCK).await;
        }
        // A round's latency is that of one job on average: jobs overlap.
        let mut latencies = Latencies::default();
        latencies.add(elapsed / u32::try_from(done).unwrap_or(u32::MAX).max(1));
        Ok(Round { operations: done, elapsed, latencies })
    }

    /// Processes whatever waits.
    #[cfg(feature = "postgres")]
    async fn until_empty(&self, worker: Worker) -> Result<(), Failure> {
        let (mut last, mut moved) = (0, Instant::now());
        loop {
            let what = List::Due { queue: escape(&self.name).into_owned() };
            let due = self.engine.list(what, None, 1).await?.items;
            if matches!(&due, Items::Records(due) if due.is_empty()) && worker.running() == 0 {
                break;
            }
            let done = worker.counts().done;
            if done > last {
                (last, moved) = (done, Instant::now());
            } else if moved.elapsed() > STUCK {
                return Err(stuck_after(done));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        worker.drain(STUCK).await;
        Ok(())
    }

    async fn close(&self) -> Result<(), Failure> {
        Ok(self.engine.close().await?)
    }
}

fn made(answer: Enqueue) -> Result<(), Failure> {
    match answer {
        Enqueue::Made => Ok(()),
        other => {
            let message = format!("an answer that the load can't have caused: {other:?}");
            Err(Failure::failed("bench.answer", message))
        }
    }
}

fn stuck_after(done: u64) -> Failure {
    let message = format!("no job was done for {} s, after {done}", STUCK.as_secs());
    Failure::failed("bench.stuck", message)
}

fn refused(error: &dyn std::fmt::Display) -> Failure {
    Failure::failed("bench.worker", error.to_string())
}
