//! What pairs cost without a store: the same rows in the same tables, by bare statements.
//!
//! As the store's lanes do, two connections work on half of the callers' requests each: one
//! statement inserts their records, one completes them, with outcomes and audit entries. There are
//! no locks, no row-level security, no seals, and nobody who asked: whatever keeps promises with
//! these rows does at least this.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Statement};

use super::load::{Keys, outcome};
use super::measure::Round;
use super::postgres::{connect, failed};
use crate::failure::Failure;

/// Connections, as many as the store has lanes.
const CONNECTIONS: u32 = 2;
/// Numbers that a call takes: more than it has rows.
const STEP: i64 = 4_096;
/// As the store's own sessions are set: rows are looked up by their whole key, one by one.
const SETTINGS: &str = "SET enable_seqscan = off; SET enable_hashjoin = off; \
    SET enable_mergejoin = off; SET enable_bitmapscan = off; SET jit = off; \
    SET plan_cache_mode = force_generic_plan";

/// The same tables as the store's, without policies.
const TABLES: &str = "CREATE TABLE @.bare_records (LIKE @.records_request INCLUDING ALL) \
        WITH (fillfactor = 50); \
    CREATE TABLE @.bare_outcomes (LIKE @.outcomes INCLUDING ALL); \
    CREATE TABLE @.bare_audit (LIKE @.audit INCLUDING ALL)";

const CLAIM: &str = "INSERT INTO @.bare_records (
        tenant, kind, name, state, fingerprint, rev, fence, last_fence, token, attempt, priority,
        created_at, updated_at, due_at, sweep_at, sweep_from, has_payload, rest
    )
    SELECT
        $1, 0, one.name, 1, $4, $3 + one.place, $3 + one.place, $3 + one.place, $5, 1, 128,
        $3, $3, $3, $3, $3, false, $6
    FROM unnest($2::text[]) WITH ORDINALITY AS one (name, place)";

const COMPLETE: &str = "WITH moved AS (
        UPDATE @.bare_records AS r SET
            state = 2, rev = $7 + one.place, fence = NULL, token = $5, updated_at = $3,
            due_at = NULL, expires_at = $3, outcome_id = $7 + one.place, outcome = $4, rest = $6
        FROM unnest($2::text[]) WITH ORDINALITY AS one (name, place)
        WHERE r.tenant = $1 AND r.kind = 0 AND r.name = one.name AND r.fence = $3 + one.place
    ), kept AS (
        INSERT INTO @.bare_outcomes (id, tenant, bytes)
        SELECT $7 + one.place, $1, one.bytes
        FROM unnest($8::bytea[]) WITH ORDINALITY AS one (bytes, place)
    )
    INSERT INTO @.bare_audit (id, tenant, at, action, key_hash, payload_hash)
    SELECT $7 + one.place, $1, $3, 'done', one.hash, one.hash
    FROM unnest($9::text[]) WITH ORDINALITY AS one (hash, place)";

/// Pairs by bare statements.
pub(super) struct BarePairs {
    connections: Vec<Arc<Prepared>>,
    shared: Arc<Shared>,
}

struct Prepared {
    client: Client,
    claim: Statement,
    complete: Statement,
}

struct Shared {
    tenant: String,
    keys: Keys,
    outcome: Vec<u8>,
    drawn: AtomicI64,
    /// Requests of one call.
    rows: usize,
}

impl BarePairs {
    /// Makes the tables. As many requests at once as there are callers.
    pub(super) async fn open(
        url: &str,
        schema: &str,
        keys: Keys,
        (tenant, callers): (&str, u32),
    ) -> Result<Self, Failure> {
        let named = |sql: &str| sql.replace('@', &format!("\"{schema}\""));
        let mut connections = Vec::new();
        for number in 0..CONNECTIONS {
            let client = connect(url).await?;
            let prepared = async {
                client.batch_execute(SETTINGS).await?;
                if number == 0 {
                    client.batch_execute(&named(TABLES)).await?;
                }
                let claim = client.prepare(&named(CLAIM)).await?;
                let complete = client.prepare(&named(COMPLETE)).await?;
                Ok((claim, complete))
            };
            let (claim, complete) = prepared.await.map_err(|error: Error| failed(&error))?;
            connections.push(Arc::new(Prepared { client, claim, complete }));
        }
        let shared = Shared {
            tenant: tenant.into(),
            keys,
            outcome: outcome(),
            drawn: AtomicI64::new(0),
            rows: callers.div_ceil(CONNECTIONS).max(1) as usize,
        };
        Ok(Self { connections, shared: Arc::new(shared) })
    }

    /// Makes what the server knows of its tables true: an empty one is joined in another way.
    pub(super) async fn settle(&self, schema: &str) -> Result<(), Failure> {
        let Some(first) = self.connections.first() else { return Ok(()) };
        let analyze = format!("ANALYZE \"{schema}\".bare_records");
        first.client.batch_execute(&analyze).await.map_err(|error| failed(&error))
    }

    /// All connections make pairs for a time.
    pub(super) async fn round(&self, time: Duration) -> Result<Round, Failure> {
        let started = Instant::now();
        let mut lanes = JoinSet::new();
        for prepared in &self.connections {
            let (prepared, shared) = (prepared.clone(), self.shared.clone());
            lanes.spawn(async move {
                let mut round = Round::default();
                let mut before = started;
                while before.duration_since(started) < time {
                    prepared.pairs(&shared).await?;
                    let after = Instant::now();
                    round.latencies.add(after - before);
                    round.operations += shared.rows as u64;
                    before = after;
                }
                round.elapsed = started.elapsed();
                Ok::<_, Error>(round)
            });
        }
        let mut all = Round::default();
        while let Some(joined) = lanes.join_next().await {
            let ended = |error| Failure::failed("bench.caller", format!("it ended early: {error}"));
            all.join(&joined.map_err(ended)?.map_err(|error| failed(&error))?);
        }
        Ok(all)
    }
}

impl Prepared {
    /// One call that claims, and one that completes what it claimed.
    async fn pairs(&self, shared: &Shared) -> Result<(), Error> {
        let tenant = shared.tenant.as_str();
        let drawn = shared.drawn.fetch_add(2 * STEP, Ordering::Relaxed);
        let next = drawn + STEP;
        let names: Vec<String> = (0..shared.rows)
            .map(|_| format!("POST /v1/payments::{}", shared.keys.id(shared.keys.draw())))
            .collect();
        let (fingerprint, token) = (&shared.outcome[..33], &shared.outcome[..16]);
        let rest = &shared.outcome[..64];
        let claim: [&(dyn ToSql + Sync); 6] =
            [&tenant, &names, &drawn, &fingerprint, &token, &rest];
        self.client.execute(&self.claim, &claim).await?;
        let outcomes = vec![shared.outcome.as_slice(); shared.rows];
        let hashes = vec!["0123456789abcdef0123456789abcdef"; shared.rows];
        let complete: [&(dyn ToSql + Sync); 9] =
            [&tenant, &names, &drawn, &fingerprint, &token, &rest, &next, &outcomes, &hashes];
        self.client.execute(&self.complete, &complete).await.map(drop)
    }
}
