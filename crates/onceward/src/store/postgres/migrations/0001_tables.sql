-- The first schema. Tables by temperature: records are small and hot, outcomes and payloads are
-- bytes that are written once, marks are hot again, audit only grows, tokens live a quarter hour.
--
-- Run inside one transaction under an advisory lock (see migrate.rs), which closes the race of two
-- processes that migrate one schema at once. Names are unqualified: the search path is the schema.
-- Texts collate "C": byte order is the order of lists, whatever the database's locale is.

-- Every group draws from here after its locks were taken, so a later holder of a key always draws
-- higher, and a deleted key that comes back draws higher still. One draw stands for as many numbers
-- as the step is wide: the group's puts and entries have those that follow what it drew, and what it
-- leaves over is never used. CACHE 1, because a session that keeps numbers in reserve would hand out
-- a low one after another session's high one.
CREATE SEQUENCE stamps AS bigint INCREMENT BY 4096 CACHE 1;

-- The store's now, in milliseconds. One function, so that no worker's clock is ever asked.
CREATE FUNCTION store_now_ms() RETURNS bigint LANGUAGE sql VOLATILE
    AS 'SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint';

CREATE TABLE records (
    rev bigint NOT NULL,
    fence bigint,
    last_fence bigint NOT NULL,
    attempt bigint NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    due_at bigint,
    expires_at bigint,
    sweep_at bigint,
    -- What the sweep's index holds: not later than sweep_at, and left as it is where it is close
    -- enough. An update that changes nothing indexed writes no index.
    sweep_from bigint,
    -- Where its bytes are in outcomes and payloads: the rev of the write that set them.
    outcome_id bigint,
    payload_id bigint,
    kind smallint NOT NULL,
    state smallint NOT NULL,
    priority smallint NOT NULL,
    has_payload boolean NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    token bytea NOT NULL,
    fingerprint bytea NOT NULL,
    outcome bytea,
    rest bytea NOT NULL,
    PRIMARY KEY (tenant, kind, name)
) PARTITION BY LIST (kind);

-- Half of a page is left to those that are claimed on it: the row that completes a claim then lies
-- beside it, and no index has to be told where.
CREATE TABLE records_request PARTITION OF records FOR VALUES IN (0) WITH (fillfactor = 50);
CREATE TABLE records_job PARTITION OF records FOR VALUES IN (1);
CREATE TABLE records_event PARTITION OF records FOR VALUES IN (2);
CREATE TABLE records_append PARTITION OF records FOR VALUES IN (3);

COMMENT ON COLUMN records.kind IS '0 request, 1 job, 2 event, 3 append';
COMMENT ON COLUMN records.state IS
    '0 pending, 1 running, 2 done, 3 failed, 4 dead, 5 unknown, 6 expired';

-- What the sweep has to look at, and nothing else. The instant alone: every record that is made
-- pays for this index, the sweep sorts what it finds itself.
CREATE INDEX records_sweep ON records (sweep_from) WHERE sweep_from IS NOT NULL;
-- The queue is the first part of the name; its hash stands for it, because with the queue itself
-- the longest keys would not fit into an index entry. Only what may be taken is in here.
CREATE INDEX records_job_due ON records_job
    (hashtextextended(split_part(name, ':', 1), 0), priority, due_at, tenant, name)
    WHERE state IN (0, 1, 3) AND due_at IS NOT NULL;

-- Bytes are found by the number in their record, which rises: they are added at the end of their
-- index, where names lie anywhere in it. An empty outcome is not kept: its record tells.
CREATE TABLE outcomes (
    id bigint PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL,
    bytes bytea NOT NULL
);

CREATE TABLE payloads (
    id bigint PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL,
    seal bytea NOT NULL,
    bytes bytea NOT NULL
);

CREATE TABLE marks (
    position bigint NOT NULL,
    updated_at bigint NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    seal bytea NOT NULL,
    digest bytea,
    value bytea,
    PRIMARY KEY (tenant, name)
);

-- Entries lie in the order of their transactions. A transaction that began early may commit late,
-- so neither the time nor the number tells what is still to come; what lies below the oldest
-- transaction that still runs (pg_snapshot_xmin) never changes any more, and is read in this order.
CREATE TABLE audit (
    xact xid8 NOT NULL DEFAULT pg_current_xact_id(),
    id bigint NOT NULL DEFAULT nextval('stamps'),
    at bigint NOT NULL,
    version_before bigint,
    version_after bigint,
    fence bigint,
    tenant text COLLATE "C" NOT NULL,
    action text COLLATE "C" NOT NULL,
    subject text COLLATE "C",
    key_hash text COLLATE "C",
    payload_hash text COLLATE "C",
    actor text COLLATE "C",
    request_id text COLLATE "C",
    correlation_id text COLLATE "C",
    detail text COLLATE "C",
    PRIMARY KEY (xact, id)
);

-- One B-tree beside the key: more of them halve the writes. Time is found by blocks, because rows
-- lie in the order of their making.
CREATE INDEX audit_tenant ON audit (tenant, xact, id);
CREATE INDEX audit_at ON audit USING brin (at) WITH (autosummarize = on);

CREATE TABLE tokens (
    at bigint NOT NULL,
    token bytea PRIMARY KEY
);

CREATE INDEX tokens_at ON tokens (at);

-- Keys that someone in another process waits for, by the number of their lock, which tells nobody
-- whose they are. Rows are few and short-lived. Lost in a crash, a waiter finds out by looking.
CREATE UNLOGGED TABLE wanted (
    lock bigint PRIMARY KEY
);
