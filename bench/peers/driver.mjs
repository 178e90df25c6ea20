// Drives the peers of `onceward bench jobs`: pg-boss and graphile-worker, tuned and batched.
//
// Reads one command per line from its input and answers each with one line of JSON: what was done,
// and in how many seconds. Each peer works in a schema of its own, which is dropped at the end. The
// jobs are those of the bench: distinct, with a payload of the same form, and a handler that does
// nothing.
//
//   enqueue PEER SECONDS TASKS   tasks make jobs one by one for so long
//   fill PEER JOBS               makes jobs in batches, not measured
//   process PEER                 runs what waits until nothing does
//   end                          drops the schemas

import { createInterface } from "node:readline";
import { randomUUID } from "node:crypto";
import pg from "pg";
import * as graphile from "graphile-worker";
import * as pgBossModule from "pg-boss";

const PgBoss = pgBossModule.PgBoss ?? pgBossModule.default;
const connectionString = process.argv[2];
const schemaOf = { "pg-boss": "onceward_bench_pgboss", "graphile-worker": "onceward_bench_graphile" };

// Settings of a first try on two cores, not a thorough tuning.
const CONNECTIONS = 16;
const FILL_BATCH = 1_000;
const BOSS_BATCH = 1_000;
const BOSS_FETCHERS = 2;
const GRAPHILE_LOCAL_QUEUE = 1_000;
const GRAPHILE_CONCURRENT = 128;

const QUEUE = "refresh";
const payload = () => ({ mission: randomUUID(), kind: "summary", priority: 3, try: true });
const seconds = (since) => Number(process.hrtime.bigint() - since) / 1e9;
const quiet = new graphile.Logger(() => () => {});

class Boss {
  async start() {
    this.boss = new PgBoss({
      connectionString, schema: schemaOf["pg-boss"], max: CONNECTIONS, supervise: false,
      schedule: false, migrate: true,
    });
    this.boss.on("error", (error) => console.error(`pg-boss: ${error.message}`));
    await this.boss.start();
    await this.boss.createQueue(QUEUE);
  }

  add() {
    return this.boss.send(QUEUE, payload());
  }

  async fill(count) {
    for (let made = 0; made < count; made += FILL_BATCH) {
      const batch = Math.min(FILL_BATCH, count - made);
      const jobs = Array.from({ length: batch }, () => ({ name: QUEUE, data: payload() }));
      // The queue's name moved out of the job in later versions.
      await (this.boss.insert.length > 1 ? this.boss.insert(QUEUE, jobs) : this.boss.insert(jobs));
    }
  }

  async process() {
    let done = 0;
    const fetcher = async () => {
      for (;;) {
        const jobs = await this.boss.fetch(QUEUE, { batchSize: BOSS_BATCH });
        if (!jobs || jobs.length === 0) return;
        await this.boss.complete(QUEUE, jobs.map((job) => job.id));
        done += jobs.length;
      }
    };
    await Promise.all(Array.from({ length: BOSS_FETCHERS }, fetcher));
    return done;
  }

  async stop() {
    await this.boss.stop({ graceful: false, wait: true });
  }
}

class Graphile {
  async start() {
    this.pool = new pg.Pool({ connectionString, max: CONNECTIONS });
    const tell = (error) => console.error(`graphile-worker: ${error.message}`);
    this.pool.on("error", tell);
    this.pool.on("connect", (client) => client.on("error", tell));
    const options = { pgPool: this.pool, schema: schemaOf["graphile-worker"], logger: quiet };
    this.utils = await graphile.makeWorkerUtils(options);
    await this.utils.migrate();
  }

  add() {
    return this.utils.addJob(QUEUE, payload());
  }

  async fill(count) {
    for (let made = 0; made < count; made += FILL_BATCH) {
      const batch = Math.min(FILL_BATCH, count - made);
      const job = () => ({ identifier: QUEUE, payload: payload() });
      await this.utils.addJobs(Array.from({ length: batch }, job));
    }
  }

  async process() {
    const wanted = await this.count();
    let done = 0;
    let finished;
    const all = new Promise((resolve) => { finished = resolve; });
    const runner = await graphile.run({
      pgPool: this.pool,
      noHandleSignals: true,
      taskList: { [QUEUE]: async () => { if (++done >= wanted) finished(); } },
      preset: {
        worker: {
          schema: schemaOf["graphile-worker"], logger: quiet, concurrentJobs: GRAPHILE_CONCURRENT,
          maxPoolSize: CONNECTIONS, pollInterval: 100,
          localQueue: { size: GRAPHILE_LOCAL_QUEUE }, completeJobBatchDelay: 0,
        },
      },
    });
    if (wanted > 0) await all;
    // What was run counts when it is recorded: a job that is done is deleted.
    while (await this.count() > 0) await new Promise((resolve) => setTimeout(resolve, 1));
    this.runner = runner;
    return done;
  }

  async count() {
    const jobs = `SELECT count(*)::int AS n FROM ${schemaOf["graphile-worker"]}._private_jobs`;
    return (await this.pool.query(jobs)).rows[0].n;
  }

  /** Ends what a round started; not measured. */
  async rest() {
    await this.runner?.stop();
    this.runner = undefined;
  }

  async stop() {
    await this.rest();
    await this.utils.release();
    await this.pool.end();
  }
}

const peers = {};

async function peer(name) {
  if (!peers[name]) {
    peers[name] = name === "pg-boss" ? new Boss() : new Graphile();
    await peers[name].start();
  }
  return peers[name];
}

async function enqueue(name, time, tasks) {
  const of = await peer(name);
  let made = 0;
  const started = process.hrtime.bigint();
  const task = async () => {
    while (seconds(started) < time) {
      await of.add();
      made += 1;
    }
  };
  await Promise.all(Array.from({ length: tasks }, task));
  return { jobs: made, seconds: seconds(started) };
}

async function processAll(name) {
  const of = await peer(name);
  const started = process.hrtime.bigint();
  const jobs = await of.process();
  const took = seconds(started);
  await of.rest?.();
  return { jobs, seconds: took };
}

async function dropSchemas() {
  const client = new pg.Client({ connectionString });
  await client.connect();
  for (const schema of Object.values(schemaOf)) {
    await client.query(`DROP SCHEMA IF EXISTS ${schema} CASCADE`);
  }
  await client.end();
}

async function command(line) {
  const [word, name, first, second] = line.trim().split(/\s+/);
  switch (word) {
    case "enqueue": return enqueue(name, Number(first), Number(second));
    case "fill": await (await peer(name)).fill(Number(first)); return {};
    case "process": return processAll(name);
    case "end":
      for (const of of Object.values(peers)) await of.stop();
      await dropSchemas();
      return {};
    default: throw new Error(`no such command: ${line}`);
  }
}

await dropSchemas();
for await (const line of createInterface({ input: process.stdin })) {
  try {
    console.log(JSON.stringify(await command(line)));
  } catch (error) {
    console.log(JSON.stringify({ error: String(error?.message ?? error) }));
  }
  if (line.trim() === "end") break;
}
process.exit(0);
