//! The bench of a Postgres store: writes beside what bare statements do on the same server.
//!
//! Everything happens in a schema of its own, which is removed at the end; the login has to be one
//! that may migrate. The baselines have the same keys and bytes, the server's own settings, and
//! prepared statements. Processes are measured as processes: this program starts itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use onceward::engine::Engine;
use onceward::store::Durability;
use onceward::store::postgres::{PostgresOptions, PostgresStore};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};

use super::Plan;
use super::bare::BarePairs;
use super::callers::{Act, Callers};
use super::load::{Keys, outcome};
use super::measure::{Cpu, ROUNDS, Round, Series};
use super::report::Report;
use crate::failure::Failure;
use crate::output::Out;

const TENANT: &str = "acme";
/// Rows of one bare statement.
const ROWS: u64 = 256;
/// Records that are made before replays are measured.
const REPLAYED: u64 = 20_000;

/// Measures everything, in a schema of its own.
pub(crate) async fn measure(url: &str, plan: &Plan, report: &mut Report) -> Result<(), Failure> {
    let schema = format!("onceward_bench_{}", std::process::id());
    let options = PostgresOptions { schema: schema.clone(), ..PostgresOptions::default() };
    PostgresStore::migrate(url, options.clone()).await?;
    let bare = connect(url).await?;
    let result = async {
        let store = PostgresStore::connect(url, options.clone()).await?;
        describe(&bare, &store, report).await?;
        let engine = Engine::new(Arc::new(store));
        let deadlocks = deadlocks(&bare).await?;
        let tables = Tables::make(&bare, &schema).await?;
        writes((url, &schema), &engine, &tables, plan, report).await?;
        report.part_ended("writes");
        replays(&engine, plan, report).await?;
        report.part_ended("replays");
        engine.close().await?;
        processes(url, &schema, plan, report).await?;
        let more = self::deadlocks(&bare).await? - deadlocks;
        report.note("deadlocks", json!(more));
        Ok::<(), Failure>(())
    }
    .await;
    plan.progress.part("removing what was made", 0);
    let removed = bare.batch_execute(&format!("DROP SCHEMA \"{schema}\" CASCADE")).await;
    result?;
    removed.map_err(|error| failed(&error))
}

/// Makes pairs in another bench's schema and says how many, for that bench.
pub(crate) async fn beside(url: &str, schema: &str, plan: &Plan, out: &Out) -> Result<(), Failure> {
    let options = PostgresOptions { schema: schema.into(), ..PostgresOptions::default() };
    let engine = Engine::new(Arc::new(PostgresStore::connect(url, options).await?));
    let seed = u64::from(std::process::id()) << 32;
    let callers = Callers::new(engine.clone(), Keys::new(TENANT, seed), plan.callers);
    // Connections and plans are made before the clock runs.
    callers.round(Act::Pair, Duration::from_millis(200)).await?;
    let started = Instant::now();
    let round = callers.round(Act::Pair, plan.round * ROUNDS).await?;
    let elapsed = started.elapsed();
    engine.close().await?;
    let per_second = round.operations as f64 / elapsed.as_secs_f64();
    out.print_json(&json!({ "per_second": per_second }))
}

/// Removes schemas that a bench has made, if it has.
pub(crate) async fn remove(url: &str, schemas: &[String]) -> Result<(), Failure> {
    let bare = connect(url).await?;
    for schema in schemas {
        let drop = format!("DROP SCHEMA IF EXISTS \"{schema}\" CASCADE");
        bare.batch_execute(&drop).await.map_err(|error| failed(&error))?;
    }
    Ok(())
}

pub(crate) async fn connect(url: &str) -> Result<Client, Failure> {
    // Our own parameter is not one of Postgres' client.
    let url = match url.split_once('?') {
        Some((place, query)) => {
            let theirs = query.split('&').filter(|parameter| !parameter.starts_with("allow="));
            format!("{place}?{}", theirs.collect::<Vec<_>>().join("&"))
        }
        None => url.into(),
    };
    let connected = tokio_postgres::connect(&url, NoTls).await;
    let (client, connection) = connected.map_err(|error| failed(&error))?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

pub(crate) fn failed(error: &tokio_postgres::Error) -> Failure {
    let why = error.as_db_error().map_or_else(|| error.to_string(), ToString::to_string);
    Failure::failed("bench.postgres", format!("a bare statement failed: {why}"))
}

async fn describe(
    bare: &Client,
    store: &PostgresStore,
    report: &mut Report,
) -> Result<(), Failure> {
    use onceward::store::Store;
    let settings = "SELECT version(), current_setting('synchronous_commit'), \
                    current_setting('fsync'), current_setting('shared_buffers')";
    let row = bare.query_one(settings, &[]).await.map_err(|error| failed(&error))?;
    let text = |column| row.try_get::<_, String>(column).unwrap_or_default();
    report.note("postgres", json!(text(0)));
    report.note("synchronous_commit", json!(text(1)));
    report.note("fsync", json!(text(2)));
    report.note("shared_buffers", json!(text(3)));
    let durability = store.capabilities().durability;
    if durability != Durability::Full {
        report.note("durability", json!(durability.to_string()));
    }
    Ok(())
}

async fn deadlocks(bare: &Client) -> Result<i64, Failure> {
    let count = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    let row = bare.query_one(count, &[]).await.map_err(|error| failed(&error))?;
    row.try_get(0).map_err(|error| failed(&error))
}

/// The tables of the baselines.
struct Tables {
    single: String,
    rows: String,
}

impl Tables {
    async fn make(bare: &Client, schema: &str) -> Result<Self, Failure> {
        let tables =
            Self { single: format!("{schema}.bench_single"), rows: format!("{schema}.bench_rows") };
        let make = format!(
            "CREATE TABLE {} (key text COLLATE \"C\" PRIMARY KEY, state smallint NOT NULL, \
                 fingerprint bytea NOT NULL, created_at timestamptz NOT NULL DEFAULT now(), \
                 expires_at timestamptz, outcome bytea); \
             CREATE TABLE {} (key text COLLATE \"C\" PRIMARY KEY, outcome bytea NOT NULL)",
            tables.single, tables.rows
        );
        bare.batch_execute(&make).await.map_err(|error| failed(&error))?;
        Ok(tables)
    }
}

/// One INSERT … ON CONFLICT and one UPDATE per request, each a commit, on pooled connections.
struct SingleStatements {
    clients: Vec<Arc<Prepared>>,
    keys: Arc<Keys>,
    outcome: Arc<Vec<u8>>,
}

struct Prepared {
    client: Client,
    insert: tokio_postgres::Statement,
    update: tokio_postgres::Statement,
}

impl SingleStatements {
    async fn open(url: &str, tables: &Tables, connections: u32) -> Result<Self, Failure> {
        let insert = format!(
            "INSERT INTO {} (key, state, fingerprint) VALUES ($1, 1, $2) ON CONFLICT DO NOTHING",
            tables.single
        );
        let update = format!(
            "UPDATE {} SET state = 2, outcome = $2, expires_at = now() + interval '1 day' \
             WHERE key = $1 AND state = 1",
            tables.single
        );
        let mut clients = Vec::new();
        for _ in 0..connections {
            let client = connect(url).await?;
            let insert = client.prepare(&insert).await.map_err(|error| failed(&error))?;
            let update = client.prepare(&update).await.map_err(|error| failed(&error))?;
            clients.push(Arc::new(Prepared { client, insert, update }));
        }
        let keys = Arc::new(Keys::new(TENANT, 1));
        Ok(Self { clients, keys, outcome: Arc::new(outcome()) })
    }

    async fn round(&self, time: Duration) -> Result<Round, Failure> {
        let started = Instant::now();
        let mut callers = JoinSet::new();
        for prepared in &self.clients {
            let (prepared, keys, outcome) =
                (prepared.clone(), self.keys.clone(), self.outcome.clone());
            callers.spawn(async move {
                let mut round = Round::default();
                let mut before = started;
                while before.duration_since(started) < time {
                    let key = keys.id(keys.draw());
                    let Prepared { client, insert, update } = &*prepared;
                    let fingerprint = &outcome[..32];
                    client.execute(insert, &[&key, &fingerprint]).await?;
                    client.execute(update, &[&key, &*outcome]).await?;
                    let after = Instant::now();
                    round.latencies.add(after - before);
                    round.operations += 1;
                    before = after;
                }
                round.elapsed = started.elapsed();
                Ok::<_, tokio_postgres::Error>(round)
            });
        }
        let mut all = Round::default();
        while let Some(joined) = callers.join_next().await {
            let ended = |error| Failure::failed("bench.caller", format!("it ended early: {error}"));
            all.join(&joined.map_err(ended)?.map_err(|error| failed(&error))?);
        }
        Ok(all)
    }
}

/// Statements of 256 rows, one after the other on one connection.
struct Unnest {
    client: Client,
    insert: tokio_postgres::Statement,
    keys: Keys,
    outcome: Vec<u8>,
}

impl Unnest {
    async fn open(url: &str, tables: &Tables) -> Result<Self, Failure> {
        let client = connect(url).await?;
        let insert = format!(
            "INSERT INTO {} (key, outcome) SELECT * FROM unnest($1::text[], $2::bytea[])",
            tables.rows
        );
        let insert = client.prepare(&insert).await.map_err(|error| failed(&error))?;
        Ok(Self { client, insert, keys: Keys::new(TENANT, 2), outcome: outcome() })
    }

    async fn round(&self, time: Duration) -> Result<Round, Failure> {
        let started = Instant::now();
        let mut round = Round::default();
        let mut before = started;
        let outcomes = vec![self.outcome.as_slice(); ROWS as usize];
        while before.duration_since(started) < time {
            let keys: Vec<String> = (0..ROWS).map(|_| self.keys.id(self.keys.draw())).collect();
            let sent = self.client.execute(&self.insert, &[&keys, &outcomes]).await;
            sent.map_err(|error| failed(&error))?;
            let after = Instant::now();
            round.latencies.add(after - before);
            round.operations += ROWS;
            before = after;
        }
        round.elapsed = started.elapsed();
        Ok(round)
    }
}

async fn writes(
    (url, schema): (&str, &str),
    engine: &Engine,
    tables: &Tables,
    plan: &Plan,
    report: &mut Report,
) -> Result<(), Failure> {
    let single = SingleStatements::open(url, tables, plan.callers).await?;
    let unnest = Unnest::open(url, tables).await?;
    let bare = BarePairs::open(url, schema, Keys::new(TENANT, 6), (TENANT, plan.callers)).await?;
    let many = Callers::new(engine.clone(), Keys::new(TENANT, 3), plan.callers);
    let alone = Callers::new(engine.clone(), Keys::new(TENANT, 4), 1);
    // Connections, plans and caches are made before the clock runs.
    let warm = Duration::from_millis(300);
    many.round(Act::Pair, warm).await?;
    single.round(warm).await?;
    unnest.round(warm).await?;
    bare.round(warm).await?;
    bare.settle(schema).await?;
    let mut series = [
        Series::new(format!("single statements, {} connections", plan.callers)),
        Series::new("bare UNNEST inserts, 256 rows, one connection"),
        Series::new("the rows of pairs by bare statements, two connections"),
        Series::new("claim + complete pairs"),
        Series::new("one commit"),
        Series::new("claim + complete pairs, one caller"),
        Series::new("one commit, one caller"),
    ];
    plan.progress.part("writes, and their baselines", u64::from(ROUNDS) * series.len() as u64);
    for _ in 0..ROUNDS {
        for (which, series) in series.iter_mut().enumerate() {
            let before = Cpu::now();
            series.add(
                before,
                &match which {
                    0 => single.round(plan.round).await?,
                    1 => unnest.round(plan.round).await?,
                    2 => bare.round(plan.round).await?,
                    3 => many.round(Act::Pair, plan.round).await?,
                    4 => many.round(Act::OneCommit, plan.round).await?,
                    5 => alone.round(Act::Pair, plan.round).await?,
                    _ => alone.round(Act::OneCommit, plan.round).await?,
                },
            );
            plan.progress.step();
        }
    }
    let [single, unnest, bare, pairs, once, pairs_alone, once_alone] = &series;
    report.add(&[single, unnest, bare, pairs, once, pairs_alone, once_alone]);
    report.ratio("pairs_vs_single_statements", pairs.versus(single));
    report.ratio("one_commit_vs_single_statements", once.versus(single));
    report.ratio("pairs_vs_unnest", pairs.versus(unnest));
    report.ratio("bare_pairs_vs_unnest", bare.versus(unnest));
    report.ratio("pairs_vs_bare_pairs", pairs.versus(bare));
    report.ratio("one_commit_vs_two", once.versus(pairs));
    report.ratio("one_commit_vs_two_one_caller", once_alone.versus(pairs_alone));
    Ok(())
}

async fn replays(engine: &Engine, plan: &Plan, report: &mut Report) -> Result<(), Failure> {
    let callers = Callers::new(engine.clone(), Keys::new(TENANT, 5), plan.callers);
    plan.progress.part("making records to replay", REPLAYED);
    callers.fill(REPLAYED, plan.progress.counter()).await?;
    let mut callers = callers;
    callers.keys = Arc::new(Keys::new(TENANT, 5).with_drawn(REPLAYED));
    let mut looks = Series::new("replays, looked up");
    let mut claims = Series::new("replays, claimed");
    plan.progress.part("replays", ROUNDS.into());
    for _ in 0..ROUNDS {
        let before = Cpu::now();
        looks.add(before, &callers.round(Act::Look, plan.round).await?);
        let before = Cpu::now();
        claims.add(before, &callers.round(Act::Replay, plan.round).await?);
        plan.progress.step();
    }
    report.add(&[&looks, &claims]);
    Ok(())
}

/// One process with all callers, and two with half of them each, in turns.
async fn processes(
    url: &str,
    schema: &str,
    plan: &Plan,
    report: &mut Report,
) -> Result<(), Failure> {
    let rounds = u64::from(ROUNDS.div_ceil(2));
    plan.progress.part("one process and two", rounds * 2);
    let mut ratios = Vec::new();
    for _ in 0..rounds {
        let one = start(url, schema, plan.callers, plan).await?;
        plan.progress.step();
        let half = plan.callers.div_ceil(2);
        let (a, b) = tokio::join!(start(url, schema, half, plan), start(url, schema, half, plan));
        plan.progress.step();
        ratios.push((a? + b?) / one);
    }
    ratios.sort_by(f64::total_cmp);
    report.ratio("two_processes_vs_one", ratios[ratios.len() / 2]);
    Ok(())
}

/// Runs this program beside us and returns how many pairs it made per second.
async fn start(url: &str, schema: &str, callers: u32, plan: &Plan) -> Result<f64, Failure> {
    let ended = |why: String| Failure::failed("bench.process", why);
    let program = std::env::current_exe().map_err(|error| ended(error.to_string()))?;
    let seconds = (plan.round * ROUNDS / 2).as_secs().max(1);
    let output = Command::new(program)
        .args(["bench", "store", "--json", "--beside", schema, "--store", url])
        .args(["--callers", &callers.to_string(), "--seconds", &seconds.to_string()])
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|error| ended(error.to_string()))?;
    let said: Option<Value> = serde_json::from_slice(&output.stdout).ok();
    said.as_ref().and_then(|said| said["per_second"].as_f64()).ok_or_else(|| {
        ended(format!("a second process ended early: {}", String::from_utf8_lossy(&output.stderr)))
    })
}
