-- Tables by temperature: what every commit touches is small, what is only replayed lies apart.
-- Numbers are the words' places in the enums (kind, state), so that their order is the keys' order.

-- One row per key, numbered by the stamp of the write that made it: appended, updated in place by id.
-- A record that was changed behind our back fails its seal (rest).
CREATE TABLE records (
    id          INTEGER PRIMARY KEY,
    tenant      TEXT    NOT NULL,
    kind        INTEGER NOT NULL,
    name        TEXT    NOT NULL,
    state       INTEGER NOT NULL,
    rev         INTEGER NOT NULL,
    fence       INTEGER,
    last_fence  INTEGER NOT NULL,
    token       BLOB    NOT NULL,
    fingerprint BLOB    NOT NULL,
    attempt     INTEGER NOT NULL,
    priority    INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    due_at      INTEGER,
    expires_at  INTEGER,
    sweep_at    INTEGER,
    outcome     BLOB,
    has_payload INTEGER NOT NULL,
    rest        BLOB    NOT NULL,
    -- The queue, as long as the record is a job that may be taken at due_at.
    queue       TEXT,
    outcome_id  INTEGER,
    payload_id  INTEGER,
    -- Zeros in the place of what a later write adds: a row that keeps its size is overwritten where
    -- it is, and no page is split for it.
    room        BLOB    NOT NULL
) STRICT;

-- The names of the records up to meta.indexed. Written by the writer in the order of the names, many
-- at a time: names come in no order, and a page per first claim would be most of what is written.
-- The younger ones are the names in the rows behind meta.indexed.
CREATE TABLE names (
    tenant TEXT    NOT NULL,
    kind   INTEGER NOT NULL,
    name   TEXT    NOT NULL,
    id     INTEGER NOT NULL,
    PRIMARY KEY (tenant, kind, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX records_sweep ON records (sweep_at) WHERE sweep_at IS NOT NULL;
CREATE INDEX records_due ON records (queue, priority DESC, due_at) WHERE queue IS NOT NULL;

-- Numbered by the stamp of the write that set them: always appended, never changed. An empty outcome
-- has no row.
CREATE TABLE outcomes (
    id     INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    body   BLOB NOT NULL
) STRICT;

CREATE TABLE payloads (
    id     INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    seal   BLOB NOT NULL,
    body   BLOB NOT NULL
) STRICT;

CREATE TABLE marks (
    id         INTEGER PRIMARY KEY,
    tenant     TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    position   INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    seal       BLOB    NOT NULL,
    value      BLOB,
    UNIQUE (tenant, name)
) STRICT;

-- Instants never run back, so the order of (at, id) within a tenant is the order of id.
CREATE TABLE audit (
    id             INTEGER PRIMARY KEY,
    tenant         TEXT    NOT NULL,
    at             INTEGER NOT NULL,
    action         TEXT    NOT NULL,
    subject        TEXT,
    key_hash       TEXT,
    payload_hash   TEXT,
    version_before INTEGER,
    version_after  INTEGER,
    fence          INTEGER,
    actor          TEXT,
    request_id     TEXT,
    correlation_id TEXT,
    detail         TEXT
) STRICT;

CREATE INDEX audit_time ON audit (tenant, at);

-- Batches that left no record to carry their token. Appended, and dropped from the front.
CREATE TABLE tokens (
    id    INTEGER PRIMARY KEY,
    token BLOB    NOT NULL UNIQUE,
    at    INTEGER NOT NULL
) STRICT;

-- The numbers that only rise: the last stamp, the last instant, the last audit entry, and the last
-- record whose name and those of all before it are in names.
CREATE TABLE meta (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    stamp   INTEGER NOT NULL,
    now     INTEGER NOT NULL,
    audit   INTEGER NOT NULL,
    indexed INTEGER NOT NULL
) STRICT;

INSERT INTO meta (id, stamp, now, audit, indexed) VALUES (1, 0, 0, 0, 0);
