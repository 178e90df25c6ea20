//! `onceward bench events`: appends that are durable when they are answered, and what follows them.
//!
//! Every append has an expected number; who loses a race takes the number that it is told. From an
//! append to its document in the search is measured on an idle service; relay and projections on
//! events that lie there already. Then the same appends on stores that hold many events.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use onceward::engine::Engine;
use onceward::events::{
    Append, AppendMany, AppendVerdict, EventStore, EventStoreOptions, ManyVerdict, NewEvent,
    Objects, Place,
};
use onceward::handlers::{Consumer, ConsumerOptions};
#[cfg(feature = "postgres")]
use onceward::store::postgres::{PostgresOptions, PostgresStore};
use onceward::store::sqlite::{SqliteOptions, SqliteStore};
use onceward_reference::ontology::{Ontology, Options, SearchIn, Workers};
use tokio::task::JoinSet;

use super::load::Keys;
use super::measure::{Cpu, ROUNDS, Round, Series};
use super::progress::Progress;
use super::report::Report;
use crate::failure::Failure;
use crate::open::StoreUrl;

const TENANT: &str = "onceward-bench";
/// Writers on aggregates of their own, and on one.
const WRITERS: usize = 64;
const RACERS: usize = 16;
/// Events of one append while a store is filled, and aggregates that it is filled with.
const BATCH: u64 = 32;
const AGGREGATES: u64 = 4_096;
/// Appends of which the way into the search is timed, in each round.
const WATCHED: u64 = 40;
/// Pause between two looks for a document.
const LOOK: Duration = Duration::from_micros(300);
/// Events that relay and projections work off, for each second that a part may take. They were
/// appended one by one, to each aggregate in turn.
const FOLLOWED_PER_SECOND: u64 = 10_000;
/// What has a goal.
const DOCUMENTS_ALONE: &str = "projection into documents alone";
const INDEX_ALONE: &str = "projection into the full-text index alone";
/// How long something may be without progress before the bench gives up.
const STUCK: Duration = Duration::from_secs(120);

/// What is to be measured, and how long.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) round: Duration,
    pub(crate) seconds: u32,
    /// Events that stores hold before appends are measured, the fewest first.
    pub(crate) held: Vec<u64>,
    pub(crate) progress: Progress,
}

/// Measures everything, in files of its own beside the store or in a schema of its own.
pub(crate) async fn measure(
    url: &StoreUrl,
    folder: &Path,
    plan: &Plan,
    report: &mut Report,
) -> Result<(), Failure> {
    let bench = Bench { url, folder: folder.to_owned(), plan };
    let measured = async {
        bench.appends(report).await?;
        bench.visible(report).await?;
        bench.following(report).await?;
        bench.together(report).await?;
        if plan.held.len() > 1 {
            bench.with_many_held(report).await?;
        }
        Ok(())
    };
    let measured: Result<(), Failure> = measured.await;
    let removed = bench.remove_schemas().await;
    measured?;
    removed
}

struct Bench<'p> {
    url: &'p StoreUrl,
    folder: PathBuf,
    plan: &'p Plan,
}

/// The parts that have a store of their own.
#[cfg(feature = "postgres")]
const PARTS: [&str; 6] = ["appends", "visible", "following", "together", "few", "many"];

impl Bench<'_> {
    /// An engine for one part, and where its search index would be.
    async fn engine(&self, part: &str) -> Result<(Engine, SearchIn), Failure> {
        #[cfg(feature = "postgres")]
        if let StoreUrl::Postgres(url) = self.url {
            let options = PostgresOptions { schema: schema(part), ..PostgresOptions::default() };
            PostgresStore::migrate(url, options.clone()).await?;
            let store = PostgresStore::connect(url, options).await?;
            let search_in = SearchIn::Postgres(within(url, &schema(part)));
            return Ok((Engine::new(Arc::new(store)), search_in));
        }
        if *self.url == StoreUrl::Memory {
            let store = self.url.open(crate::open::Access::Create).await?;
            return Ok((Engine::new(store), SearchIn::Documents));
        }
        let path = self.folder.join(format!("{part}.db"));
        let store = SqliteStore::open(&path, SqliteOptions::default())?;
        Ok((Engine::new(Arc::new(store)), SearchIn::Sqlite(path)))
    }

    fn objects(&self, part: &str) -> Result<Objects, Failure> {
        Objects::folder(self.folder.join(format!("{part}.events"))).map_err(|error| broken(&error))
    }

    async fn store(&self, part: &str) -> Result<Writers, Failure> {
        let (engine, _) = self.engine(part).await?;
        let objects = self.objects(part)?;
        let opened = EventStore::open(engine, objects, EventStoreOptions::default()).await;
        let store = opened.map_err(|error| broken(&error))?;
        let seed = u64::from(std::process::id());
        Ok(Writers { store, keys: Arc::new(Keys::new(TENANT, seed)) })
    }

    fn start(&self, part: &str, steps: usize) {
        self.plan.progress.part(part, u64::from(ROUNDS) * steps as u64);
    }

    async fn appends(&self, report: &mut Report) -> Result<(), Failure> {
        let writers = self.store("appends").await?;
        let mut series = [
            Series::new("append, 1 writer"),
            Series::new("append, 64 writers on 64 aggregates"),
            Series::new("append, 16 writers on one aggregate"),
        ];
        self.start("append", series.len());
        for round in 0..ROUNDS {
            for (which, series) in series.iter_mut().enumerate() {
                let names: Vec<String> = match which {
                    0 => vec![format!("single-{round}")],
                    1 => (0..WRITERS).map(|w| format!("own-{round}-{w}")).collect(),
                    _ => vec![format!("shared-{round}"); RACERS],
                };
                let before = Cpu::now();
                series.add(before, &writers.for_a_time(&names, self.plan.round).await?);
                self.plan.progress.step();
            }
        }
        report.add(&series.each_ref());
        report.part_ended("append");
        writers.close().await
    }

    /// From the call of append until the search knows it, when nothing else is to be done.
    async fn visible(&self, report: &mut Report) -> Result<(), Failure> {
        let (engine, search_in) = self.engine("visible").await?;
        let options = Options { search_in, ..Options::default() };
        let opened = Ontology::open(engine, self.objects("visible")?, options).await;
        let ontology = opened.map_err(|error| broken(&error))?;
        let running = ontology.workers().start().map_err(|error| broken(&error))?;
        let mut series = Series::new("append → found by the search, idle");
        self.start("append → search", 1);
        for round in 0..ROUNDS {
            let before = Cpu::now();
            let begun = Instant::now();
            let mut done = Round::default();
            while done.operations < WATCHED && begun.elapsed() < self.plan.round {
                let name = format!("boat{round}x{}", done.operations);
                let asked = Instant::now();
                append_one(ontology.events(), &name).await?;
                while !found(&ontology, &name).await? {
                    if asked.elapsed() > STUCK {
                        return Err(stuck("the search"));
                    }
                    tokio::time::sleep(LOOK).await;
                }
                done.latencies.add(asked.elapsed());
                done.operations += 1;
            }
            done.elapsed = begun.elapsed();
            series.add(before, &done);
            self.plan.progress.step();
        }
        report.add(&[&series]);
        running.drain().await;
        close(ontology.events()).await
    }

    /// Events that lie there already: the relay alone, then one view after the other alone.
    async fn following(&self, report: &mut Report) -> Result<(), Failure> {
        let filled = self.filled("following").await?;
        let mut series = ["relay alone", DOCUMENTS_ALONE, INDEX_ALONE].map(Series::new);
        self.start_once("relay and projections, one by one", series.len());
        let relayed = filled.measured(filled.relay()).await?;
        relayed.add_to(&mut series[0]);
        self.plan.progress.step();
        for (name, series) in [Workers::INSTANCES, Workers::SEARCH].iter().zip(&mut series[1..]) {
            let followed = filled.measured(filled.follow(name)).await?;
            followed.add_to(series);
            self.plan.progress.step();
        }
        report.add(&series.each_ref());
        report.part_ended("relay and projections, one by one");
        close(filled.ontology.events()).await
    }

    /// The same, all at once: the service at work behind its head.
    async fn together(&self, report: &mut Report) -> Result<(), Failure> {
        let filled = self.filled("together").await?;
        let mut series = Series::new("relay, documents, classes and index together, events each");
        self.start_once("relay and projections, together", 1);
        let all = async {
            let [instances, classes, search] =
                [Workers::INSTANCES, Workers::CLASSES, Workers::SEARCH];
            tokio::try_join!(
                filled.relay(),
                filled.follow(instances),
                filled.follow(classes),
                filled.follow(search),
            )
        };
        filled.measured(all).await?.add_to(&mut series);
        report.add(&[&series]);
        report.part_ended("relay and projections, together");
        close(filled.ontology.events()).await
    }

    /// A service whose events nobody has followed yet.
    async fn filled(&self, part: &str) -> Result<Filled, Failure> {
        let (engine, search_in) = self.engine(part).await?;
        let options = Options { search_in, ..Options::default() };
        let opened = Ontology::open(engine, self.objects(part)?, options).await;
        let ontology = opened.map_err(|error| broken(&error))?;
        let keys = Arc::new(Keys::new(TENANT, u64::from(std::process::id())));
        let writers = Writers { store: ontology.events().clone(), keys };
        let count = u64::from(self.plan.seconds) * FOLLOWED_PER_SECOND;
        self.plan.progress.part("making events", 1);
        writers.fill(count, 1).await?;
        self.plan.progress.step();
        let head = ontology.events().head().await.map_err(|error| broken(&error))?;
        Ok(Filled { ontology, head, count })
    }

    fn start_once(&self, part: &str, steps: usize) {
        self.plan.progress.part(part, steps as u64);
    }

    async fn with_many_held(&self, report: &mut Report) -> Result<(), Failure> {
        let (Some(few), Some(many)) = (self.plan.held.first(), self.plan.held.last()) else {
            return Ok(());
        };
        let mut stores = Vec::new();
        let mut series = Vec::new();
        for (part, held) in [("few", *few), ("many", *many)] {
            let shown = super::embedded::short(held);
            let writers = self.store(part).await?;
            self.plan.progress.part(&format!("making {shown} events"), 1);
            writers.fill(held, BATCH).await?;
            stores.push(writers);
            series.push(Series::new(format!("append, 64 writers, {shown} events there")));
        }
        self.start("append with many held", series.len());
        for round in 0..ROUNDS {
            for (writers, series) in stores.iter().zip(&mut series) {
                let names: Vec<_> = (0..WRITERS).map(|w| format!("held-{round}-{w}")).collect();
                let before = Cpu::now();
                series.add(before, &writers.for_a_time(&names, self.plan.round).await?);
                self.plan.progress.step();
            }
        }
        let [at_few, at_many] = series.as_slice() else { return Ok(()) };
        report.add(&[at_few, at_many]);
        let [few, many] = [few, many].map(|held| super::embedded::short(*held));
        report.ratio(format!("at_{many}_vs_{few}"), at_many.versus(at_few));
        report.part_ended("many held");
        for writers in stores {
            writers.close().await?;
        }
        Ok(())
    }

    async fn remove_schemas(&self) -> Result<(), Failure> {
        #[cfg(feature = "postgres")]
        if let StoreUrl::Postgres(url) = self.url {
            let schemas: Vec<_> = PARTS.iter().map(|part| schema(part)).collect();
            return super::postgres::remove(url, &schemas).await;
        }
        Ok(())
    }
}

/// The same database, with the tables of this schema.
#[cfg(feature = "postgres")]
fn within(url: &str, schema: &str) -> String {
    let joint = if url.contains('?') { '&' } else { '?' };
    format!("{url}{joint}options=-csearch_path%3D{schema}")
}

#[cfg(feature = "postgres")]
fn schema(part: &str) -> String {
    format!("onceward_bench_{}_{part}", std::process::id())
}

/// A service with events that nobody has followed yet.
struct Filled {
    ontology: Ontology,
    head: Place,
    count: u64,
}

/// What was done, from when on.
struct Once {
    before: Cpu,
    round: Round,
}

impl Once {
    fn add_to(&self, series: &mut Series) {
        series.add(self.before, &self.round);
    }
}

impl Filled {
    async fn measured<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<Once, Failure> {
        let (before, begun) = (Cpu::now(), Instant::now());
        match tokio::time::timeout(STUCK, work).await {
            Ok(done) => done?,
            Err(_) => return Err(stuck("what follows the events")),
        };
        let (operations, elapsed) = (self.count, begun.elapsed());
        Ok(Once { before, round: Round { operations, elapsed, ..Round::default() } })
    }

    /// Relays everything.
    async fn relay(&self) -> Result<(), Failure> {
        let relay = self.ontology.workers().start_relay()?;
        while relay.status().acknowledged < self.head {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        relay.drain().await.map_err(|error| broken(&error))
    }

    /// Brings one view up to the head.
    async fn follow(&self, name: &str) -> Result<(), Failure> {
        let workers = self.ontology.workers();
        let projection = workers.projection(name).ok_or_else(|| refused(name))?;
        let generation = projection.generation().await?.live;
        let handler = projection.handler(generation).await.map_err(|error| broken(&error))?;
        let options = ConsumerOptions { until: Some(self.head), ..workers.consumer(name)? };
        let mut consumer = Consumer::start(handler, workers.log().clone(), options)?;
        consumer.ended().await.map_err(|error| broken(&error))?;
        let done = consumer.counts().done;
        if done == self.count { Ok(()) } else { Err(stuck(&format!("{name} at {done} events"))) }
    }
}

/// Those who append.
#[derive(Clone)]
struct Writers {
    store: EventStore,
    keys: Arc<Keys>,
}

impl Writers {
    /// One task per name appends to its aggregate for a time.
    async fn for_a_time(&self, names: &[String], time: Duration) -> Result<Round, Failure> {
        let started = Instant::now();
        let mut tasks = JoinSet::new();
        for name in names {
            let (this, name) = (self.clone(), name.clone());
            tasks.spawn(async move {
                let mut round = Round::default();
                let mut expected = 0;
                let mut before = started;
                while before.duration_since(started) < time {
                    let event_id = this.keys.id(this.keys.draw());
                    expected = this.append(&name, &event_id, expected).await?;
                    let after = Instant::now();
                    round.latencies.add(after - before);
                    round.operations += 1;
                    before = after;
                }
                round.elapsed = started.elapsed();
                Ok::<_, Failure>(round)
            });
        }
        let mut all = Round::default();
        while let Some(joined) = tasks.join_next().await {
            all.join(&joined.map_err(|error| broken(&error))??);
        }
        Ok(all)
    }

    /// Appends, with the number that it is told when it lost a race. Its own number.
    async fn append(&self, name: &str, event_id: &str, expected: u64) -> Result<u64, Failure> {
        let mut append = Append {
            tenant: TENANT.into(),
            aggregate_id: name.into(),
            event_id: event_id.into(),
            kind: "instance.update".into(),
            payload: payload(event_id).into(),
            expected_seq: Some(expected),
            correlation_id: None,
        };
        loop {
            match self.store.append(&append).await.map_err(|error| broken(&error))? {
                AppendVerdict::Appended(done) => return Ok(done.sequence_number),
                AppendVerdict::SequenceMismatch { current } => append.expected_seq = Some(current),
                other => return Err(refused(&format!("{other:?}"))),
            }
        }
    }

    /// Appends many events to many aggregates, so many to each in turn, as fast as it goes.
    async fn fill(&self, count: u64, each: u64) -> Result<(), Failure> {
        let batches = count.div_ceil(each);
        let mut tasks = JoinSet::new();
        for task in 0..WRITERS as u64 {
            let this = self.clone();
            tasks.spawn(async move {
                let mut at = task;
                while at < batches {
                    this.append_batch(&format!("filled-{}", at % AGGREGATES), each).await?;
                    at += WRITERS as u64;
                }
                Ok::<_, Failure>(())
            });
        }
        while let Some(joined) = tasks.join_next().await {
            joined.map_err(|error| broken(&error))??;
        }
        Ok(())
    }

    async fn append_batch(&self, name: &str, count: u64) -> Result<(), Failure> {
        let event = |_| {
            let event_id = self.keys.id(self.keys.draw());
            let payload = payload(&event_id).into();
            NewEvent { event_id, kind: "instance.update".into(), payload }
        };
        let append = AppendMany {
            tenant: TENANT.into(),
            aggregate_id: name.into(),
            expected_seq: None,
            events: (0..count).map(event).collect(),
            correlation_id: None,
        };
        match self.store.append_many(&append).await.map_err(|error| broken(&error))? {
            ManyVerdict::Appended(_) => Ok(()),
            other => Err(refused(&format!("{other:?}"))),
        }
    }

    async fn close(&self) -> Result<(), Failure> {
        close(&self.store).await
    }
}

fn payload(id: &str) -> String {
    format!(r#"{{"name":"Boat {id}","gears":7,"colour":"red","trips":[1,2,3],"new":true}}"#)
}

async fn append_one(store: &EventStore, name: &str) -> Result<(), Failure> {
    let append = Append {
        tenant: TENANT.into(),
        aggregate_id: name.into(),
        event_id: name.into(),
        kind: "instance.create".into(),
        payload: format!(r#"{{"name":"{name}"}}"#).into(),
        expected_seq: Some(0),
        correlation_id: None,
    };
    store.append(&append).await.map(drop).map_err(|error| broken(&error))
}

async fn found(ontology: &Ontology, name: &str) -> Result<bool, Failure> {
    let found = ontology.workers().search(TENANT, name, None, 1).await;
    Ok(!found.map_err(|error| broken(&error))?.is_empty())
}

async fn close(store: &EventStore) -> Result<(), Failure> {
    store.close().await.map_err(|error| broken(&error))?;
    Ok(store.engine().close().await?)
}

fn stuck(what: &str) -> Failure {
    Failure::failed("bench.stuck", format!("{what} made no progress for {STUCK:?}"))
}

fn refused(why: &str) -> Failure {
    Failure::failed("bench.events", format!("an append was refused: {why}"))
}

fn broken(error: &impl ToString) -> Failure {
    Failure::failed("bench.events", error.to_string())
}
