-- breaking

-- All of it is in the schema `parked`, which `parked migrate` creates first. Texts that are keys compare byte by byte
-- (COLLATE "C"), as in SQLite: faster, and not moved by an upgrade of the system's collations. Times are UTC epoch
-- seconds. Hot tables have room in their pages for new versions of a row, and are vacuumed after so many changed rows,
-- not by their share of the table.

-- Which migrations ran. Kept apart from the rest, so that any version of parked can read it.
CREATE TABLE parked.schema_version (
    number BIGINT PRIMARY KEY,
    additive BOOLEAN NOT NULL,  -- programs that don't know it can go on using the ledger
    title TEXT NOT NULL,
    applied_at DOUBLE PRECISION NOT NULL,
    applied_by TEXT NOT NULL  -- the version of parked
);

-- One row. The word names this ledger in metrics.
CREATE TABLE parked.ledger (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    name TEXT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL
);

-- One row a process that writes. Ids are never used again: a late answer names the owner it had.
CREATE SEQUENCE parked.owner_ids;
CREATE TABLE parked.owners (
    id BIGINT PRIMARY KEY DEFAULT nextval('parked.owner_ids'),
    token TEXT NOT NULL UNIQUE,
    role TEXT NOT NULL,
    host TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    pid_namespace TEXT NOT NULL,
    pid BIGINT NOT NULL,
    process_start TEXT NOT NULL,
    version TEXT NOT NULL,
    beat BIGINT NOT NULL DEFAULT 0,
    started_at DOUBLE PRECISION NOT NULL,
    beat_at DOUBLE PRECISION NOT NULL,  -- for people; nothing is decided by it
    ended_at DOUBLE PRECISION,
    lost_at DOUBLE PRECISION
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);
CREATE INDEX owners_alive ON parked.owners (id) WHERE ended_at IS NULL AND lost_at IS NULL;

CREATE SEQUENCE parked.replay_ids;
CREATE TABLE parked.replays (
    id BIGINT PRIMARY KEY DEFAULT nextval('parked.replay_ids'),
    name TEXT NOT NULL,
    who TEXT NOT NULL,
    filters TEXT NOT NULL,  -- as JSON
    trigger TEXT NOT NULL CHECK (trigger IN ('manual', 'auto')),
    started_at DOUBLE PRECISION NOT NULL,
    ended_at DOUBLE PRECISION,
    recovered BIGINT NOT NULL DEFAULT 0,
    parked_again BIGINT NOT NULL DEFAULT 0,
    released BIGINT NOT NULL DEFAULT 0
);

-- Places in line. Who needs some takes a block of its own, so that nobody looks at the jobs for the last one.
CREATE SEQUENCE parked.places INCREMENT BY 4096;

-- Small rows; the bodies stand elsewhere. Never reused ids, since writers and late answers hold them. That an owner is
-- alive is checked under a lock on its row before a job gets it, so that no foreign key has to ask a second time.
CREATE SEQUENCE parked.job_ids;
CREATE TABLE parked.jobs (
    id BIGINT PRIMARY KEY DEFAULT nextval('parked.job_ids'),
    pipeline TEXT COLLATE "C" NOT NULL,
    batch TEXT COLLATE "C" NOT NULL,
    job_id TEXT COLLATE "C" NOT NULL,
    model TEXT COLLATE "C" NOT NULL,
    state TEXT COLLATE "C" NOT NULL CHECK (
        state IN ('pending', 'running', 'succeeded', 'parked', 'replaying', 'recovered', 'discarded')
    ),
    came_from TEXT CHECK (came_from IN ('pending', 'parked')),
    error_class TEXT COLLATE "C",
    reason TEXT COLLATE "C",
    kind TEXT,
    scope TEXT,
    fingerprint TEXT COLLATE "C",
    calls BIGINT NOT NULL DEFAULT 0,
    calls_elsewhere BIGINT NOT NULL DEFAULT 0,  -- of these, made before the ledger knew the job: no attempt tells of them
    strikes BIGINT NOT NULL DEFAULT 0,
    replays BIGINT NOT NULL DEFAULT 0,
    auto_replays BIGINT NOT NULL DEFAULT 0,  -- of these, started by the sidecar
    not_before DOUBLE PRECISION,
    place BIGINT NOT NULL,
    caller TEXT COLLATE "C" NOT NULL,
    checker TEXT COLLATE "C" NOT NULL,
    accepted_at DOUBLE PRECISION NOT NULL,
    started_at DOUBLE PRECISION,
    parked_at DOUBLE PRECISION,
    finished_at DOUBLE PRECISION,
    owner_id BIGINT,
    replay_id BIGINT,
    trace_id TEXT,
    span_id TEXT,
    note TEXT,
    payload_hash BYTEA NOT NULL,
    revision BIGINT NOT NULL DEFAULT 0,
    erased_at DOUBLE PRECISION  -- when its bodies and messages were removed for good
) WITH (
    fillfactor = 80, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_threshold = 1000, autovacuum_analyze_scale_factor = 0.02
);
-- The job id goes first: people ask for it without knowing pipeline and batch.
CREATE UNIQUE INDEX jobs_key ON parked.jobs (job_id, pipeline, batch);
CREATE INDEX jobs_states ON parked.jobs (pipeline, state);
CREATE INDEX jobs_line ON parked.jobs (place, id) WHERE state = 'pending';
CREATE INDEX jobs_pending ON parked.jobs (pipeline, accepted_at) WHERE state = 'pending';
CREATE INDEX jobs_running ON parked.jobs (pipeline, started_at) WHERE state = 'running';
CREATE INDEX jobs_held ON parked.jobs (owner_id) WHERE owner_id IS NOT NULL;
CREATE INDEX jobs_parked ON parked.jobs (parked_at, id) WHERE state = 'parked';
CREATE INDEX jobs_parked_line ON parked.jobs (place, id) WHERE state = 'parked';
CREATE INDEX jobs_parked_class ON parked.jobs (pipeline, error_class, parked_at) WHERE state = 'parked';
CREATE INDEX jobs_parked_cause ON parked.jobs (fingerprint, error_class, reason, parked_at) WHERE state = 'parked';

-- Revision 0 is what was first accepted; a mended payload or another model is stored beside it.
CREATE TABLE parked.payloads (
    job BIGINT NOT NULL REFERENCES parked.jobs (id) ON DELETE CASCADE,
    revision BIGINT NOT NULL,
    model TEXT,  -- NULL: the job's own
    codec TEXT NOT NULL,
    key_id TEXT,
    body BYTEA NOT NULL,
    stored_at DOUBLE PRECISION NOT NULL,
    note TEXT,
    PRIMARY KEY (job, revision)
);

CREATE TABLE parked.answers (
    job BIGINT PRIMARY KEY REFERENCES parked.jobs (id) ON DELETE CASCADE,
    attempt BIGINT NOT NULL,
    codec TEXT NOT NULL,
    key_id TEXT,
    body BYTEA NOT NULL,
    answered_at DOUBLE PRECISION NOT NULL,
    handed_out_at DOUBLE PRECISION,  -- when it was first written to a file or printed
    delivered_at DOUBLE PRECISION,  -- when PARKED_ON_ANSWER took it
    deliveries BIGINT NOT NULL DEFAULT 0,  -- tries so far
    deliver_after DOUBLE PRECISION,  -- not tried again before
    delivery_fault TEXT  -- what the last try met
);
CREATE INDEX answers_by_time ON parked.answers (handed_out_at, answered_at);
CREATE INDEX answers_undelivered ON parked.answers (deliver_after)
 WHERE delivered_at IS NULL AND deliver_after IS NOT NULL;

CREATE TABLE parked.attempts (
    job BIGINT NOT NULL REFERENCES parked.jobs (id) ON DELETE CASCADE,
    number BIGINT NOT NULL,
    replay_id BIGINT,
    owner_id BIGINT,  -- NULL: made elsewhere, before the ledger knew the job
    model TEXT,  -- NULL: the job's own
    revision BIGINT NOT NULL DEFAULT 0,  -- of the payload that was sent
    strike BOOLEAN NOT NULL DEFAULT false,
    started_at DOUBLE PRECISION NOT NULL,
    ended_at DOUBLE PRECISION,
    duration_s DOUBLE PRECISION,
    answered BOOLEAN NOT NULL DEFAULT false,
    interrupted BOOLEAN NOT NULL DEFAULT false,
    kind TEXT,
    reason TEXT,
    scope TEXT,
    status BIGINT,
    rule TEXT NOT NULL DEFAULT '',
    fingerprint TEXT,
    quota_id TEXT,
    message TEXT NOT NULL DEFAULT '',
    retry_after_s DOUBLE PRECISION,
    tokens_in BIGINT,
    tokens_out BIGINT,
    response_id TEXT,
    trace_id TEXT,
    span_id TEXT,
    PRIMARY KEY (job, number)
) WITH (fillfactor = 80, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX attempts_open ON parked.attempts (owner_id) WHERE ended_at IS NULL;

-- What `a` and `b` mean stands in counters.py. A process counts in its slot; who reads takes all slots together.
CREATE TABLE parked.counters (
    metric TEXT COLLATE "C" NOT NULL,
    pipeline TEXT COLLATE "C" NOT NULL,
    model TEXT COLLATE "C" NOT NULL,
    a TEXT COLLATE "C" NOT NULL DEFAULT '',
    b TEXT COLLATE "C" NOT NULL DEFAULT '',
    slot INTEGER NOT NULL DEFAULT 0,
    value DOUBLE PRECISION NOT NULL DEFAULT 0,
    first_at DOUBLE PRECISION NOT NULL,  -- when this label set first moved
    trace_id TEXT,
    span_id TEXT,
    example_value DOUBLE PRECISION,
    example_at DOUBLE PRECISION,
    PRIMARY KEY (metric, pipeline, model, a, b, slot)
) WITH (fillfactor = 40, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);

CREATE TABLE parked.gates (
    model TEXT PRIMARY KEY,
    reason TEXT,
    closed_until DOUBLE PRECISION,
    probe_interval_s DOUBLE PRECISION,
    pace_per_s DOUBLE PRECISION,
    outage_since DOUBLE PRECISION,
    prober BIGINT REFERENCES parked.owners (id),
    probe_began_at DOUBLE PRECISION,
    last_success_began_at DOUBLE PRECISION,
    changed_at DOUBLE PRECISION NOT NULL
);

CREATE TABLE parked.pauses (
    pipeline TEXT NOT NULL,
    model TEXT NOT NULL,  -- empty: all models
    reason TEXT NOT NULL,
    fault_began_at DOUBLE PRECISION NOT NULL,  -- of the first call that met it; a success begun later clears the pause
    since DOUBLE PRECISION NOT NULL,
    until DOUBLE PRECISION,
    owner_id BIGINT REFERENCES parked.owners (id),
    PRIMARY KEY (pipeline, model)
);

CREATE TABLE parked.leases (
    task TEXT PRIMARY KEY,
    owner_id BIGINT NOT NULL REFERENCES parked.owners (id),
    taken_at DOUBLE PRECISION NOT NULL
);

CREATE TABLE parked.marks (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL,  -- as JSON
    set_at DOUBLE PRECISION NOT NULL
);
