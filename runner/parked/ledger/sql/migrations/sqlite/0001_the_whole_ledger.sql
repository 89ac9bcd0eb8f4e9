-- breaking

-- "park" in ASCII: tells a ledger from another program's database.
PRAGMA application_id = 1885434475;

-- Which migrations ran. Kept apart from the rest, so that any version of parked can read it.
CREATE TABLE schema_version (
    number INTEGER PRIMARY KEY,
    additive INTEGER NOT NULL,  -- 1: programs that don't know it can go on using the ledger
    title TEXT NOT NULL,
    applied_at REAL NOT NULL,
    applied_by TEXT NOT NULL  -- the version of parked
);

-- One row. The word names this ledger in metrics.
CREATE TABLE ledger (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    name TEXT NOT NULL,
    created_at REAL NOT NULL
);

-- One row a process that writes. Ids are never used again: a late answer names the owner it had.
CREATE TABLE owners (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    token TEXT NOT NULL UNIQUE,
    role TEXT NOT NULL,
    host TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    pid_namespace TEXT NOT NULL,
    pid INTEGER NOT NULL,
    process_start TEXT NOT NULL,
    version TEXT NOT NULL,
    beat INTEGER NOT NULL DEFAULT 0,
    started_at REAL NOT NULL,
    beat_at REAL NOT NULL,  -- for people; nothing is decided by it
    ended_at REAL,
    lost_at REAL
);
CREATE INDEX owners_alive ON owners (id) WHERE ended_at IS NULL AND lost_at IS NULL;

CREATE TABLE replays (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    who TEXT NOT NULL,
    filters TEXT NOT NULL,  -- as JSON
    trigger TEXT NOT NULL CHECK (trigger IN ('manual', 'auto')),
    started_at REAL NOT NULL,
    ended_at REAL,
    recovered INTEGER NOT NULL DEFAULT 0,
    parked_again INTEGER NOT NULL DEFAULT 0,
    released INTEGER NOT NULL DEFAULT 0
);

-- Small rows; the bodies stand elsewhere. Never reused ids, since writers and late answers hold them.
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    pipeline TEXT NOT NULL,
    batch TEXT NOT NULL,
    job_id TEXT NOT NULL,
    model TEXT NOT NULL,
    state TEXT NOT NULL CHECK (
        state IN ('pending', 'running', 'succeeded', 'parked', 'replaying', 'recovered', 'discarded')
    ),
    came_from TEXT CHECK (came_from IN ('pending', 'parked')),
    error_class TEXT,
    reason TEXT,
    kind TEXT,
    scope TEXT,
    fingerprint TEXT,
    calls INTEGER NOT NULL DEFAULT 0,
    calls_elsewhere INTEGER NOT NULL DEFAULT 0,  -- of these, made before the ledger knew the job: no attempt tells of them
    strikes INTEGER NOT NULL DEFAULT 0,
    replays INTEGER NOT NULL DEFAULT 0,
    auto_replays INTEGER NOT NULL DEFAULT 0,  -- of these, started by the sidecar
    not_before REAL,
    place INTEGER NOT NULL,
    caller TEXT NOT NULL,
    checker TEXT NOT NULL,
    accepted_at REAL NOT NULL,
    started_at REAL,
    parked_at REAL,
    finished_at REAL,
    owner_id INTEGER REFERENCES owners (id) DEFERRABLE INITIALLY DEFERRED,  -- deferred: see `move_job`
    replay_id INTEGER REFERENCES replays (id) DEFERRABLE INITIALLY DEFERRED,
    trace_id TEXT,
    span_id TEXT,
    note TEXT,
    payload_hash BLOB NOT NULL,
    revision INTEGER NOT NULL DEFAULT 0,
    erased_at REAL  -- when its bodies and messages were removed for good
);
-- The job id goes first: people ask for it without knowing pipeline and batch.
CREATE UNIQUE INDEX jobs_key ON jobs (job_id, pipeline, batch);
CREATE INDEX jobs_line ON jobs (state, place);
CREATE INDEX jobs_line_of_pipeline ON jobs (pipeline, state, place);
CREATE INDEX jobs_pending ON jobs (pipeline, accepted_at) WHERE state = 'pending';
CREATE INDEX jobs_running ON jobs (pipeline, started_at) WHERE state = 'running';
CREATE INDEX jobs_held ON jobs (owner_id) WHERE owner_id IS NOT NULL;
CREATE INDEX jobs_parked ON jobs (parked_at) WHERE state = 'parked';
CREATE INDEX jobs_parked_class ON jobs (pipeline, error_class, parked_at) WHERE state = 'parked';
CREATE INDEX jobs_parked_cause ON jobs (fingerprint, error_class, reason, parked_at) WHERE state = 'parked';

-- Revision 0 is what was first accepted; a mended payload or another model is stored beside it.
CREATE TABLE payloads (
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    revision INTEGER NOT NULL,
    model TEXT,  -- NULL: the job's own
    codec TEXT NOT NULL,
    key_id TEXT,
    body BLOB NOT NULL,
    stored_at REAL NOT NULL,
    note TEXT
);
CREATE UNIQUE INDEX payloads_key ON payloads (job, revision);

CREATE TABLE answers (
    job INTEGER PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    codec TEXT NOT NULL,
    key_id TEXT,
    body BLOB NOT NULL,
    answered_at REAL NOT NULL,
    handed_out_at REAL,  -- when it was first written to a file or printed
    delivered_at REAL,  -- when PARKED_ON_ANSWER took it
    deliveries INTEGER NOT NULL DEFAULT 0,  -- tries so far
    deliver_after REAL,  -- not tried again before
    delivery_fault TEXT  -- what the last try met
);
CREATE INDEX answers_by_time ON answers (handed_out_at, answered_at);
CREATE INDEX answers_undelivered ON answers (deliver_after) WHERE delivered_at IS NULL AND deliver_after IS NOT NULL;

CREATE TABLE attempts (
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    replay_id INTEGER REFERENCES replays (id),
    owner_id INTEGER REFERENCES owners (id),  -- NULL: made elsewhere, before the ledger knew the job
    model TEXT,  -- NULL: the job's own
    revision INTEGER NOT NULL DEFAULT 0,  -- of the payload that was sent
    strike INTEGER NOT NULL DEFAULT 0,
    started_at REAL NOT NULL,
    ended_at REAL,
    duration_s REAL,
    answered INTEGER NOT NULL DEFAULT 0,
    interrupted INTEGER NOT NULL DEFAULT 0,
    kind TEXT,
    reason TEXT,
    scope TEXT,
    status INTEGER,
    rule TEXT NOT NULL DEFAULT '',
    fingerprint TEXT,
    quota_id TEXT,
    message TEXT NOT NULL DEFAULT '',
    retry_after_s REAL,
    tokens_in INTEGER,
    tokens_out INTEGER,
    response_id TEXT,
    trace_id TEXT,
    span_id TEXT,
    PRIMARY KEY (job, number)
) WITHOUT ROWID;
CREATE INDEX attempts_open ON attempts (owner_id) WHERE ended_at IS NULL;

-- What `a` and `b` mean stands in counters.py.
CREATE TABLE counters (
    metric TEXT NOT NULL,
    pipeline TEXT NOT NULL,
    model TEXT NOT NULL,
    a TEXT NOT NULL DEFAULT '',
    b TEXT NOT NULL DEFAULT '',
    slot INTEGER NOT NULL DEFAULT 0,
    value REAL NOT NULL DEFAULT 0,
    first_at REAL NOT NULL,  -- when this label set first moved
    trace_id TEXT,
    span_id TEXT,
    example_value REAL,
    example_at REAL,
    PRIMARY KEY (metric, pipeline, model, a, b, slot)
) WITHOUT ROWID;

CREATE TABLE gates (
    model TEXT PRIMARY KEY,
    reason TEXT,
    closed_until REAL,
    probe_interval_s REAL,
    pace_per_s REAL,
    outage_since REAL,
    prober INTEGER REFERENCES owners (id),
    probe_began_at REAL,
    last_success_began_at REAL,
    changed_at REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE pauses (
    pipeline TEXT NOT NULL,
    model TEXT NOT NULL,  -- empty: all models
    reason TEXT NOT NULL,
    fault_began_at REAL NOT NULL,  -- of the first call that met it; a success that began later clears the pause
    since REAL NOT NULL,
    until REAL,
    owner_id INTEGER REFERENCES owners (id),
    PRIMARY KEY (pipeline, model)
) WITHOUT ROWID;

CREATE TABLE leases (
    task TEXT PRIMARY KEY,
    owner_id INTEGER NOT NULL REFERENCES owners (id),
    taken_at REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE marks (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL,  -- as JSON
    set_at REAL NOT NULL
) WITHOUT ROWID;
