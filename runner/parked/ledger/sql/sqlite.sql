-- Every statement that parked sends to a SQLite ledger, by name. `{name}` stands for the text of that name.
-- Values are always bound: by name, but where a statement runs for each job of a run, by place, which takes half as
-- long. What is to be written was decided in moves.py, from rows read in the same transaction, or held by this process.

-- name: due
-- Whether a job's time has come. Where the clock was set back behind its start, the clock can't tell, and it has.
(jobs.not_before IS NULL OR jobs.not_before <= :now OR jobs.started_at > :now)

-- name: job
-- The columns of a JobRow, in its order.
jobs.id, jobs.pipeline, jobs.batch, jobs.job_id, jobs.model, jobs.state, jobs.came_from, jobs.error_class, jobs.reason,
jobs.kind, jobs.scope, jobs.fingerprint, jobs.calls, jobs.strikes, jobs.replays, jobs.not_before, jobs.place,
jobs.caller, jobs.checker, jobs.accepted_at, jobs.started_at, jobs.parked_at, jobs.finished_at, jobs.owner_id,
jobs.replay_id, jobs.trace_id, jobs.span_id, jobs.note, jobs.payload_hash, jobs.revision, jobs.erased_at,
jobs.auto_replays

-- name: owner
-- The columns of an OwnerRow, its facts first.
owners.token, owners.role, owners.host, owners.boot_id, owners.pid_namespace, owners.pid, owners.process_start,
owners.version, owners.id, owners.beat, owners.started_at, owners.beat_at, owners.ended_at, owners.lost_at,
owners.pipeline, owners.caller, owners.checker, owners.run_began_at


-- ==== taking on ====

-- name: last_place
-- The highest place in line that any job was given. NULL: there is none.
SELECT max(place) FROM jobs;

-- name: accept
-- Take a job on: as pending, or started at once.
-- No row: the job is known already.
INSERT INTO jobs (
    pipeline, batch, job_id, model, state, calls, place, caller, checker, accepted_at, started_at, owner_id, trace_id,
    span_id, payload_hash
) VALUES (
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
)
ON CONFLICT (job_id, pipeline, batch) DO NOTHING;

-- name: keep_payload
-- Store what was accepted.
INSERT INTO payloads (job, revision, codec, key_id, body, stored_at)
VALUES (?, 0, ?, ?, ?, ?);

-- name: mend_payload
-- Store the next revision of what a job sends: another payload, another model, or both.
INSERT INTO payloads (job, revision, model, codec, key_id, body, stored_at, note)
SELECT job, revision + 1, coalesce(:model, model), coalesce(:codec, codec),
       CASE WHEN :codec IS NULL THEN key_id ELSE :key_id END, coalesce(:body, body), :now, :note
  FROM payloads WHERE job = :job AND revision = :revision;

-- name: mend_job
-- Let a parked job send its next revision.
UPDATE jobs SET revision = :revision + 1
 WHERE id = :job AND state = 'parked' AND erased_at IS NULL AND revision = :revision;

-- name: keep_model
-- Note for which model a job was meant so far, before it gets another.
UPDATE payloads SET model = :was WHERE job = :job AND model IS NULL;

-- name: give_model
-- Give a pending job another model: in its row, since it goes in the lane of that model now.
-- No row: it isn't pending as it was read; the transaction must not go on.
UPDATE jobs SET model = :model, revision = :revision + 1, strikes = :strikes, not_before = :not_before
 WHERE id = :job AND state = 'pending' AND revision = :revision;

-- name: job_by_key
-- The job of this pipeline, batch and job id.
-- No row: it was never accepted, or retention removed it.
SELECT {job} FROM jobs WHERE job_id = :job_id AND pipeline = :pipeline AND batch = :batch;

-- name: called_elsewhere
-- Note calls that no attempt tells of.
UPDATE jobs SET calls_elsewhere = calls_elsewhere + :calls WHERE id = :id;


-- ==== a job's course ====

-- name: jobs_by_id
-- The jobs of these ids.
-- No row for an id: retention removed the job.
SELECT {job} FROM jobs WHERE id IN (SELECT value FROM json_each(:ids));

-- name: attempt
-- How the attempts of these numbers of these jobs stand; of a job's last one where no number is given.
-- No row for one: there is none of that number.
SELECT attempts.job, attempts.number, attempts.started_at, attempts.ended_at, attempts.answered, attempts.interrupted
  FROM json_each(:attempts) AS given CROSS JOIN jobs ON jobs.id = json_extract(given.value, '$[0]')
  JOIN attempts ON attempts.job = jobs.id AND attempts.number = coalesce(json_extract(given.value, '$[1]'), jobs.calls);

-- name: move_job
-- Write a job as it is after a move.
-- No row: it is not as the move found it; the transaction must not go on.
-- OR FAIL, with foreign keys that are checked at the commit: else SQLite copies every page that it touches, to be able
-- to undo this one statement, which takes as long as the rest of it. Whatever fails here ends the transaction anyway.
UPDATE OR FAIL jobs
   SET state = ?, came_from = ?, error_class = ?, reason = ?, kind = ?, scope = ?, fingerprint = ?, calls = ?,
       strikes = ?, replays = ?, not_before = ?, place = ?, started_at = ?, parked_at = ?, finished_at = ?,
       owner_id = ?, replay_id = ?, trace_id = ?, span_id = ?, note = ?, auto_replays = ?
 WHERE id = ? AND state = ? AND owner_id IS ? AND calls = ?;

-- name: open_attempt
-- Note that a call is about to be made.
INSERT INTO attempts (job, number, replay_id, owner_id, revision, started_at)
VALUES (?, ?, ?, ?, ?, ?);

-- name: close_attempt
-- Note how a call ended, or what is now known of one that was closed without its outcome.
UPDATE attempts
   SET strike = ?, answered = ?, interrupted = ?, duration_s = ?, kind = ?, reason = ?, scope = ?, status = ?, rule = ?,
       fingerprint = ?, quota_id = ?, message = ?, message_key_id = ?, retry_after_s = ?, tokens_in = ?, tokens_out = ?, response_id = ?,
       trace_id = ?, span_id = ?, ended_at = ?
 WHERE job = ? AND number = ?;

-- name: forgive_attempt
-- Take back a strike.
UPDATE attempts SET strike = 0 WHERE job = :job AND number = :number;

-- name: keep_answer
-- Store an answer.
-- No row: there is one already, and the first stands.
INSERT INTO answers (job, attempt, codec, key_id, body, answered_at)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (job) DO NOTHING;

-- name: lanes
-- The lanes that hold pending jobs whose time has come. The first job of each lane is found from the one before in at
-- most four look-ups; comparing rows, (a, b) > (x, y), SQLite walks over all that share the first column.
WITH RECURSIVE firsts (id) AS (
    SELECT (SELECT id FROM jobs INDEXED BY jobs_lanes WHERE state = 'pending' ORDER BY pipeline, caller, checker, model LIMIT 1)
    UNION ALL
    SELECT coalesce(
        (
            SELECT id FROM jobs INDEXED BY jobs_lanes
             WHERE state = 'pending' AND pipeline = this.pipeline AND caller = this.caller AND checker = this.checker
               AND model > this.model ORDER BY model LIMIT 1
        ),
        (
            SELECT id FROM jobs INDEXED BY jobs_lanes
             WHERE state = 'pending' AND pipeline = this.pipeline AND caller = this.caller AND checker > this.checker
             ORDER BY checker, model LIMIT 1
        ),
        (
            SELECT id FROM jobs INDEXED BY jobs_lanes
             WHERE state = 'pending' AND pipeline = this.pipeline AND caller > this.caller
             ORDER BY caller, checker, model LIMIT 1
        ),
        (
            SELECT id FROM jobs INDEXED BY jobs_lanes
             WHERE state = 'pending' AND pipeline > this.pipeline ORDER BY pipeline, caller, checker, model LIMIT 1
        )
    ) FROM firsts JOIN jobs AS this ON this.id = firsts.id
)
SELECT lane.pipeline, lane.caller, lane.checker, lane.model FROM firsts JOIN jobs AS lane ON lane.id = firsts.id
 WHERE EXISTS (
    SELECT 1 FROM jobs INDEXED BY jobs_lanes
     WHERE state = 'pending' AND pipeline = lane.pipeline AND caller = lane.caller AND checker = lane.checker
       AND model = lane.model AND {due}
);

-- name: heads
-- The first pending jobs of a lane whose time has come, in order of place.
SELECT {job} FROM jobs INDEXED BY jobs_lanes
 WHERE state = 'pending' AND pipeline = :pipeline AND caller = :caller AND checker = :checker AND model = :model
   AND {due}
 ORDER BY place, id LIMIT :limit;

-- name: tails
-- The last ones instead.
SELECT {job} FROM jobs INDEXED BY jobs_lanes
 WHERE state = 'pending' AND pipeline = :pipeline AND caller = :caller AND checker = :checker AND model = :model
   AND {due}
 ORDER BY place DESC, id DESC LIMIT :limit;

-- name: payload
-- What a job sends: its payload, or the mended one that stands for it.
-- No row: no such job.
SELECT codec, key_id, body FROM payloads JOIN jobs ON jobs.id = payloads.job AND jobs.revision = payloads.revision
 WHERE jobs.id = :id;

-- name: payloads
-- The same for jobs by their ids.
SELECT jobs.id, codec, key_id, body FROM payloads JOIN jobs ON jobs.id = payloads.job AND jobs.revision = payloads.revision
 WHERE jobs.id IN (SELECT value FROM json_each(:ids));

-- name: payloads_kept_otherwise
-- Jobs in a state, of a pipeline or (NULL) of all, whose payload is encrypted or was never stored.
SELECT jobs.id, payloads.codec, payloads.key_id
  FROM jobs JOIN payloads ON payloads.job = jobs.id AND payloads.revision = jobs.revision
 WHERE jobs.state = :state AND (payloads.key_id IS NOT NULL OR payloads.codec = 'omitted')
   AND (:pipeline IS NULL OR jobs.pipeline = :pipeline);

-- name: keys_used
-- With which key what is encrypted (NULL: with none), and how much; a look at every row. `pending` is among `payloads`.
SELECT 'payloads', key_id, count(*) FROM payloads WHERE codec NOT IN ('erased', 'omitted') GROUP BY key_id
UNION ALL
SELECT 'answers', key_id, count(*) FROM answers WHERE codec NOT IN ('erased', 'omitted') GROUP BY key_id
UNION ALL
SELECT 'messages', message_key_id, count(*) FROM attempts WHERE message <> '' GROUP BY message_key_id
UNION ALL
SELECT 'pending', key_id, count(*)
  FROM jobs JOIN payloads ON payloads.job = jobs.id AND payloads.revision = jobs.revision
 WHERE state = 'pending' AND codec NOT IN ('erased', 'omitted') GROUP BY key_id;

-- name: identity_keys
-- With which keys the identities of payloads were made: a keyed one begins with the id of its key.
SELECT lower(hex(substr(payload_hash, 1, 4))), count(*) FROM jobs WHERE length(payload_hash) > 32 GROUP BY 1;

-- name: payloads_under_other_keys
SELECT payloads.job, payloads.revision, codec, key_id, body, CASE payloads.revision WHEN 0 THEN payload_hash END
  FROM payloads JOIN jobs ON jobs.id = payloads.job
 WHERE (payloads.job, payloads.revision) > (:job, :number) AND key_id IS NOT :key_id AND codec NOT IN ('erased', 'omitted')
 ORDER BY payloads.job, payloads.revision LIMIT :limit;

-- name: answers_under_other_keys
SELECT job, 0, codec, key_id, body, NULL FROM answers
 WHERE (job, 0) > (:job, :number) AND key_id IS NOT :key_id AND codec NOT IN ('erased', 'omitted') ORDER BY job LIMIT :limit;

-- name: messages_under_other_keys
SELECT job, number, '', message_key_id, message, NULL FROM attempts
 WHERE (job, number) > (:job, :number) AND message_key_id IS NOT :key_id AND message <> '' ORDER BY job, number LIMIT :limit;

-- name: has_answer
-- No row: no answer is stored for this job.
SELECT 1 FROM answers WHERE job = :job;

-- name: hand_out
-- Note that an answer was written out; the first time counts.
UPDATE answers SET handed_out_at = :now WHERE job = :job AND handed_out_at IS NULL;

-- name: make_deliverable
-- Let the answer of a job that has just recovered be delivered.
UPDATE answers SET deliver_after = :now WHERE job = :job AND delivered_at IS NULL;

-- name: note_delivery
-- Note what came of delivering an answer. Where nothing was wrong it is delivered, and handed out thereby.
UPDATE answers
   SET deliveries = deliveries + 1, delivery_fault = :fault, deliver_after = :after,
       delivered_at = CASE WHEN :fault IS NULL THEN coalesce(delivered_at, :now) ELSE delivered_at END,
       handed_out_at = CASE WHEN :fault IS NULL THEN coalesce(handed_out_at, :now) ELSE handed_out_at END
 WHERE job = :job;


-- name: erase_payloads
-- Empty what a job sends, mended payloads too. The first says why.
UPDATE payloads
   SET codec = :codec, key_id = NULL, body = x'', note = CASE revision WHEN 0 THEN coalesce(note, :why) ELSE note END
 WHERE job = :job;

-- name: erase_answer
-- No row: it has none.
UPDATE answers SET codec = :codec, key_id = NULL, body = x'', delivery_fault = NULL WHERE job = :job;

-- name: erase_messages
UPDATE attempts SET message = '', message_key_id = NULL WHERE job = :job;

-- name: note_erasure
UPDATE jobs SET erased_at = coalesce(erased_at, :now) WHERE id = :job;

-- name: rekey_payloads
-- Keep a text in another way.
-- No row, here and below: it was erased, or kept in another way by somebody else.
UPDATE payloads SET codec = ?, key_id = ?, body = ? WHERE job = ? AND revision = ? AND codec = ? AND key_id IS ?;

-- name: rekey_answers
UPDATE answers SET codec = ?, key_id = ?, body = ? WHERE job = ? AND ? = 0 AND codec = ? AND key_id IS ?;

-- name: rekey_messages
UPDATE attempts SET message_key_id = ?, message = ? WHERE job = ? AND number = ? AND message_key_id IS ? AND message = ?;

-- name: rekey_identities
UPDATE jobs SET payload_hash = ? WHERE id = ? AND payload_hash = ?;

-- name: texts
-- Whether anything that erasing removes can still be read of a row of jobs.
(
    EXISTS (SELECT 1 FROM payloads WHERE payloads.job = jobs.id AND payloads.codec <> 'erased')
    OR EXISTS (SELECT 1 FROM answers WHERE answers.job = jobs.id AND answers.codec <> 'erased')
    OR EXISTS (SELECT 1 FROM attempts WHERE attempts.job = jobs.id AND attempts.message <> '')
)

-- name: has_texts
-- No row: nothing of them is left.
SELECT 1 FROM jobs WHERE id = :job AND {texts};

-- name: erased_with_texts
-- Jobs that were erased and got a text again.
SELECT id FROM jobs WHERE erased_at IS NOT NULL AND {texts};

-- name: to_be_handed_out
-- Whether a row of jobs has an answer that nobody was handed yet.
EXISTS (
    SELECT 1 FROM answers
     WHERE answers.job = jobs.id AND answers.handed_out_at IS NULL AND answers.codec NOT IN ('erased', 'omitted')
)

-- name: forgettable
-- Finished jobs that may be forgotten, behind an id.
SELECT id FROM jobs
 WHERE id > :after AND state IN ('succeeded', 'recovered', 'discarded') AND finished_at < :before
   AND NOT {to_be_handed_out}
 ORDER BY id LIMIT :limit;

-- name: forget_jobs
-- Remove jobs, and by their foreign keys all that belongs to them.
-- No row for one: its answer is still to be handed out.
DELETE FROM jobs WHERE id IN (SELECT value FROM json_each(:ids)) AND NOT {to_be_handed_out} RETURNING id;


-- ==== counters ====

-- name: counted_pairs
-- What jobs count under: a pair of pipeline and model is let in with its first count.
SELECT DISTINCT pipeline, model FROM counters WHERE metric = 'jobs_accepted';

-- name: count
-- Add to a label set, which begins with its first move; or set it, where the latest counts.
INSERT INTO counters (metric, pipeline, model, a, b, value, first_at, trace_id, span_id, example_value, example_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (metric, pipeline, model, a, b, slot) DO UPDATE
   SET value = CASE WHEN ? THEN excluded.value ELSE value + excluded.value END,
       trace_id = coalesce(excluded.trace_id, trace_id), span_id = coalesce(excluded.span_id, span_id),
       example_value = coalesce(excluded.example_value, example_value),
       example_at = coalesce(excluded.example_at, example_at);


-- ==== owners, replays, leases, marks ====

-- name: register
-- Enter a process as an owner.
INSERT INTO owners (token, role, host, boot_id, pid_namespace, pid, process_start, version, started_at, beat_at)
VALUES (:token, :role, :host, :boot_id, :pid_namespace, :pid, :process_start, :version, :now, :now);

-- name: beat
-- Raise an owner's beat.
-- No row: it has ended, or was declared lost.
UPDATE owners SET beat = beat + 1, beat_at = :now WHERE id = :id AND ended_at IS NULL AND lost_at IS NULL;

-- name: owners_alive
-- All owners that are neither ended nor lost.
SELECT {owner} FROM owners WHERE ended_at IS NULL AND lost_at IS NULL;

-- name: owner_alive
-- No row: this owner has ended or was declared lost.
SELECT 1 FROM owners WHERE id = :id AND ended_at IS NULL AND lost_at IS NULL;

-- name: owners
-- All owners ever, in the order of their coming.
SELECT {owner} FROM owners ORDER BY id;

-- name: owners_counted
-- How many there are now, and how many were declared lost since.
SELECT (SELECT count(*) FROM owners WHERE ended_at IS NULL AND lost_at IS NULL),
       (SELECT count(*) FROM owners WHERE lost_at >= :since);

-- name: lose
-- Declare an owner lost.
-- No row: its beat moved since it was seen to stand still, or it has ended, or it is lost already.
UPDATE owners SET lost_at = :now WHERE id = :id AND beat = :beat AND ended_at IS NULL AND lost_at IS NULL;

-- name: leave
-- An owner ends in order.
-- No row: it has ended already, or was declared lost.
UPDATE owners SET ended_at = :now WHERE id = :id AND ended_at IS NULL AND lost_at IS NULL;

-- name: other_run
-- The living owner that began first to run a pipeline, but for one.
-- No row: nobody else runs it.
SELECT {owner} FROM owners
 WHERE ended_at IS NULL AND lost_at IS NULL AND pipeline = :pipeline AND id <> :owner_id
 ORDER BY run_began_at, id LIMIT 1;

-- name: note_run
-- Note what an owner runs.
-- No row: it has ended, or was declared lost.
UPDATE owners SET pipeline = :pipeline, caller = :caller, checker = :checker, run_began_at = :now
 WHERE id = :owner_id AND ended_at IS NULL AND lost_at IS NULL;

-- name: end_run
-- An owner runs nothing any more.
UPDATE owners SET pipeline = NULL WHERE id = :owner_id;

-- name: held_by
-- The jobs that an owner holds.
SELECT id FROM jobs WHERE owner_id = :owner_id;

-- name: open_attempts_of
-- The attempts that an owner left open, of whatever job.
SELECT job, number, started_at, ended_at, answered, interrupted FROM attempts WHERE owner_id = :owner_id AND ended_at IS NULL;

-- name: open_replay
-- Enter a replay.
INSERT INTO replays (name, who, filters, trigger, started_at) VALUES (:name, :who, :filters, :trigger, :now);

-- name: close_replay
-- Note what a replay came to.
UPDATE replays
   SET recovered = :recovered, parked_again = :parked_again, released = :released, ended_at = :now
 WHERE id = :id;

-- name: trigger
-- What set off a replay.
SELECT trigger FROM replays WHERE id = :id;

-- name: take_lease
-- Take or renew the lease of a task.
-- No row: another owner that lives holds it.
INSERT INTO leases (task, owner_id, taken_at) VALUES (:task, :owner_id, :now)
ON CONFLICT (task) DO UPDATE SET owner_id = excluded.owner_id, taken_at = excluded.taken_at
 WHERE leases.owner_id = excluded.owner_id
    OR leases.taken_at <= :now - :ttl_s
    -- Taken so far in the future: the clock was set back, and would keep it until that time comes again.
    OR leases.taken_at > :now + :ttl_s
    OR NOT EXISTS (
        SELECT 1 FROM owners WHERE id = leases.owner_id AND ended_at IS NULL AND lost_at IS NULL
    );

-- name: set_mark
-- Keep a fact by name.
INSERT INTO marks (name, value, set_at) VALUES (:name, :value, :now)
ON CONFLICT (name) DO UPDATE SET value = excluded.value, set_at = excluded.set_at;


-- ==== gates and pauses ====

-- name: set_gate
-- Tell how a gate stands. A pace that isn't known leaves what was learned.
INSERT INTO gates (
    model, reason, closed_until, probe_interval_s, pace_per_s, pace_learnt_at, outage_since, last_success_began_at,
    changed_at
) VALUES (
    :model, :reason, :closed_until, :probe_interval_s, :pace_per_s, :pace_learnt_at, :outage_since,
    :last_success_began_at, :now
)
ON CONFLICT (model) DO UPDATE
   SET reason = excluded.reason, closed_until = excluded.closed_until, probe_interval_s = excluded.probe_interval_s,
       pace_per_s = coalesce(excluded.pace_per_s, gates.pace_per_s),
       pace_learnt_at = CASE WHEN excluded.pace_per_s IS NULL THEN gates.pace_learnt_at ELSE excluded.pace_learnt_at END,
       outage_since = excluded.outage_since,
       last_success_began_at = coalesce(excluded.last_success_began_at, gates.last_success_began_at),
       changed_at = excluded.changed_at;

-- name: gates
-- How all gates were last told to stand. Before 0004 nobody noted when a pace was learnt; not after this, at least.
SELECT model, reason, closed_until, pace_per_s, outage_since, changed_at, coalesce(pace_learnt_at, changed_at)
  FROM gates ORDER BY model;

-- name: claim_probe
-- Be the one who probes.
-- No row: the gate isn't closed by an outage there, or somebody has probed it too short a time ago.
UPDATE gates SET prober = :owner_id, probe_began_at = :now
 WHERE model = :model AND reason = 'outage' AND (probe_began_at IS NULL OR probe_began_at <= :now - :interval_s);

-- name: last_probe
-- When an outage was last probed.
-- No row: no outage is noted there.
SELECT probe_began_at FROM gates WHERE model = :model AND reason = 'outage';

-- name: set_pause
-- Note a pause; the first call that met its fault stands.
INSERT INTO pauses (pipeline, model, reason, fault_began_at, since, until, owner_id)
VALUES (:pipeline, :model, :reason, :fault_began_at, :now, :until, :owner_id)
ON CONFLICT (pipeline, model) DO UPDATE
   SET reason = excluded.reason, fault_began_at = excluded.fault_began_at, until = excluded.until,
       owner_id = excluded.owner_id;

-- name: clear_pause
-- A pause is over.
-- No row: there is none, or its fault was met later.
DELETE FROM pauses WHERE pipeline = :pipeline AND model = :model AND fault_began_at <= :began_at;

-- name: pauses
SELECT pipeline, model, reason, fault_began_at, since, until, owner_id FROM pauses ORDER BY pipeline, model;

-- name: first_that_met
-- The pending job, first in line, of which a call has failed for this reason. No row: none has.
SELECT job_id, batch FROM jobs
 WHERE pipeline = :pipeline AND state = 'pending' AND calls > 0
   AND EXISTS (SELECT 1 FROM attempts WHERE attempts.job = jobs.id AND attempts.reason = :reason)
 ORDER BY place LIMIT 1;

-- name: pauses_that_hold
-- The same without those that hold back nothing any more: what was pending there was discarded, say. A sidecar runs only
-- what it replays: the pause of one that lives holds back parked jobs, too.
SELECT pipeline, model, reason, fault_began_at, since, until, owner_id FROM pauses
 WHERE EXISTS (
    SELECT 1 FROM jobs
     WHERE state = 'pending' AND jobs.pipeline = pauses.pipeline AND pauses.model IN ('', jobs.model)
 ) OR EXISTS (
    SELECT 1 FROM owners
     WHERE owners.id = pauses.owner_id AND role = 'sidecar' AND ended_at IS NULL AND lost_at IS NULL
 ) AND EXISTS (
    SELECT 1 FROM jobs
     WHERE state = 'parked' AND jobs.pipeline = pauses.pipeline AND pauses.model IN ('', jobs.model)
 )
 ORDER BY pipeline, model;


-- ==== the schema ====

-- name: tables
-- What another program's database has.
SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 3;

-- name: applied_steps
-- The migrations that ran, and whether each was additive.
SELECT number, additive FROM schema_version;

-- name: note_step
-- Note that a migration ran.
INSERT INTO schema_version (number, additive, title, applied_at, applied_by) VALUES (:number, :additive, :title, :now, :by);

-- name: name_ledger
-- Give a new ledger its word.
INSERT INTO ledger (one, name, created_at) VALUES (1, :name, :now);

-- name: users
-- Who uses the ledger just now.
SELECT host, pid, version FROM owners WHERE ended_at IS NULL AND lost_at IS NULL ORDER BY id;


-- ==== asking ====

-- name: ledger_name
SELECT name FROM ledger;

-- name: select_jobs
SELECT {job} FROM jobs

-- name: count_jobs
SELECT count(*) FROM jobs

-- name: where_state
state = :state

-- name: where_parked
-- Spelled out, so that the indexes on parked jobs serve.
state = 'parked'

-- name: where_states
state IN (SELECT value FROM json_each(:states))

-- name: where_pipeline
pipeline = :pipeline

-- name: where_batch
batch = :batch

-- name: where_model
jobs.model = :model

-- name: where_error_class
error_class = :error_class

-- name: where_error_class_like
-- GLOB, since LIKE would take capitals for small letters.
error_class GLOB :error_class

-- name: where_reason
reason = :reason

-- name: where_fingerprint
fingerprint = :fingerprint

-- name: where_job_ids
job_id IN (SELECT value FROM json_each(:job_ids))

-- name: where_job_id
job_id = :job_id

-- name: where_since_parked
parked_at >= :since

-- name: where_until_parked
parked_at < :until

-- name: where_since_accepted
accepted_at >= :since

-- name: where_until_accepted
accepted_at < :until

-- name: where_since_answered
answered_at >= :since

-- name: where_until_answered
answered_at < :until

-- name: where_new
handed_out_at IS NULL

-- name: where_kept
answers.codec <> 'erased'

-- name: where_answered
state IN ('succeeded', 'recovered')

-- name: by_place
ORDER BY place, jobs.id

-- name: by_parking
ORDER BY parked_at DESC, jobs.id DESC

-- name: by_acceptance
-- Ids grow as jobs are accepted.
ORDER BY jobs.id DESC

-- name: by_answer
ORDER BY answered_at, jobs.id

-- name: limit
LIMIT :limit

-- name: select_causes
-- Parked jobs that share a fingerprint, those apart that were erased; and the latest of them as an example.
SELECT fingerprint, error_class, reason, erased_at IS NOT NULL, count(*), min(parked_at), max(parked_at), max(id)
  FROM jobs

-- name: by_cause
GROUP BY fingerprint, error_class, reason, erased_at IS NOT NULL ORDER BY count(*) DESC, max(parked_at) DESC

-- name: cause_counts
-- The same for all parked jobs, over a covering index, and how many of them are new. Those that were erased come in one
-- row for each time of erasing.
SELECT fingerprint, error_class, reason, erased_at, count(*), count(*) FILTER (WHERE parked_at >= :since),
       min(parked_at), max(parked_at), max(id)
  FROM jobs WHERE state = 'parked' GROUP BY fingerprint, error_class, reason, erased_at;

-- name: select_answers
SELECT {job}, answers.codec, answers.key_id, answers.body, answers.answered_at, answers.handed_out_at
  FROM answers JOIN jobs ON jobs.id = answers.job

-- name: undelivered
-- Answers that are due to be delivered, each with how often that was tried. A time that lies further ahead than any wait
-- was written before the clock was set back.
SELECT {job}, answers.codec, answers.key_id, answers.body, answers.answered_at, answers.handed_out_at,
       answers.deliveries
  FROM answers JOIN jobs ON jobs.id = answers.job
 WHERE answers.delivered_at IS NULL AND answers.deliver_after IS NOT NULL
   AND (answers.deliver_after <= :now OR answers.deliver_after > :now + :longest_s)
   AND (answers.handed_out_at IS NULL OR answers.answered_at >= :since) AND {where_kept}
   AND answers.codec <> 'omitted'
 ORDER BY answers.deliver_after, jobs.id LIMIT :limit;

-- name: where_id
jobs.id = :id

-- name: jobs_with_payloads
-- Jobs by their ids, in order of place, and what each sends.
SELECT {job}, payloads.codec, payloads.key_id, payloads.body, payloads.model
  FROM jobs JOIN payloads ON payloads.job = jobs.id AND payloads.revision = jobs.revision
 WHERE jobs.id IN (SELECT value FROM json_each(:ids)) ORDER BY jobs.place, jobs.id;

-- name: answer_bodies
-- The answers of jobs by their ids.
-- No row: that job has none, or it was erased.
SELECT job, codec, key_id, body FROM answers WHERE job IN (SELECT value FROM json_each(:ids)) AND {where_kept};

-- name: identities
-- By which payload the known ones of these job ids go.
SELECT job_id, payload_hash FROM jobs
 WHERE pipeline = :pipeline AND batch = :batch AND job_id IN (SELECT value FROM json_each(:job_ids));

-- name: erasure
-- No row: its texts were not erased.
SELECT erased_at, payloads.note FROM jobs JOIN payloads ON payloads.job = jobs.id AND payloads.revision = 0
 WHERE jobs.id = :id AND erased_at IS NOT NULL;

-- name: attempts
-- A job's attempts in order, as AttemptRow.
SELECT number, replay_id, owner_id, strike, started_at, ended_at, duration_s, answered, interrupted, kind, reason, scope,
       status, rule, fingerprint, quota_id, message, retry_after_s, tokens_in, tokens_out, response_id, trace_id, span_id,
       attempts.revision, payloads.model, attempts.message_key_id
  FROM attempts LEFT JOIN payloads ON payloads.job = attempts.job AND payloads.revision = attempts.revision
 WHERE attempts.job = :id ORDER BY number;

-- name: revisions
-- What a job was accepted with, and what replaced it, in order. The note of the first would say why it was erased.
SELECT revision, model, stored_at, CASE revision WHEN 0 THEN NULL ELSE note END FROM payloads
 WHERE job = :id ORDER BY revision;

-- name: select_counters
-- Label sets as CounterRow. SQLite has one slot.
SELECT metric, pipeline, model, a, b, value, first_at, trace_id, span_id, example_value, example_at FROM counters

-- name: where_metrics
metric IN (SELECT value FROM json_each(:metrics))

-- name: by_label_set
ORDER BY metric, pipeline, model, a, b

-- name: oldest_parked
-- The first of each pipeline and class in the order of an index, each found from the one before in two look-ups at most
-- (see `lanes`). The index is named, since the planner can't know that one row is all that is asked of it.
WITH RECURSIVE firsts (id) AS (
    SELECT (SELECT id FROM jobs INDEXED BY jobs_parked_class WHERE state = 'parked' ORDER BY pipeline, error_class, parked_at LIMIT 1)
    UNION ALL
    SELECT coalesce(
        (
            SELECT id FROM jobs INDEXED BY jobs_parked_class
             WHERE state = 'parked' AND pipeline = this.pipeline AND error_class > this.error_class
             ORDER BY error_class, parked_at LIMIT 1
        ),
        (
            SELECT id FROM jobs INDEXED BY jobs_parked_class
             WHERE state = 'parked' AND pipeline > this.pipeline ORDER BY pipeline, error_class, parked_at LIMIT 1
        )
    ) FROM firsts JOIN jobs AS this ON this.id = firsts.id
)
SELECT pipeline, error_class, parked_at FROM firsts JOIN jobs ON jobs.id = firsts.id;

-- name: oldest_pending
WITH RECURSIVE firsts (id) AS (
    SELECT (SELECT id FROM jobs INDEXED BY jobs_pending WHERE state = 'pending' ORDER BY pipeline, accepted_at LIMIT 1)
    UNION ALL
    SELECT (
        SELECT id FROM jobs INDEXED BY jobs_pending
         WHERE state = 'pending' AND pipeline > this.pipeline ORDER BY pipeline, accepted_at LIMIT 1
    ) FROM firsts JOIN jobs AS this ON this.id = firsts.id
)
SELECT pipeline, '', accepted_at FROM firsts JOIN jobs ON jobs.id = firsts.id;

-- name: oldest_running
WITH RECURSIVE firsts (id) AS (
    SELECT (SELECT id FROM jobs INDEXED BY jobs_running WHERE state = 'running' ORDER BY pipeline, started_at LIMIT 1)
    UNION ALL
    SELECT (
        SELECT id FROM jobs INDEXED BY jobs_running
         WHERE state = 'running' AND pipeline > this.pipeline ORDER BY pipeline, started_at LIMIT 1
    ) FROM firsts JOIN jobs AS this ON this.id = firsts.id
)
SELECT pipeline, '', started_at FROM firsts JOIN jobs ON jobs.id = firsts.id;

-- name: states
-- Rows by pipeline and state, over a covering index.
SELECT pipeline, state, count(*) FROM jobs GROUP BY pipeline, state;

-- name: parked_rows
-- Parked rows by the labels of the gauge `parked_now`; as they lie in the file, more or less: in the order of their
-- classes it took four times as long.
SELECT pipeline, model, error_class, reason, count(*) FROM jobs INDEXED BY jobs_parked_line WHERE state = 'parked'
 GROUP BY pipeline, model, error_class, reason;

-- name: mark
-- No row: it was never set.
SELECT value FROM marks WHERE name = :name;

-- name: marks
-- Those whose names begin so.
SELECT name, value FROM marks WHERE substr(name, 1, length(:beginning)) = :beginning ORDER BY name;

-- name: leases
-- Tasks, and who holds each.
SELECT task, {owner} FROM leases JOIN owners ON owners.id = leases.owner_id ORDER BY task;

-- name: room
-- The file; what it takes up with its WAL, the file system knows.
SELECT file FROM pragma_database_list WHERE name = 'main';


-- ==== what surrounds it ====

-- name: clock
-- The database's clock, in UTC epoch seconds: this machine's.
SELECT (julianday('now') - 2440587.5) * 86400.0;

-- name: newest
-- When something last happened in it, as far as a few look-ups tell. NULL: nothing ever did.
SELECT max(at) FROM (
    SELECT max(beat_at) AS at FROM (SELECT beat_at FROM owners ORDER BY id DESC LIMIT 100) AS latest
    UNION ALL SELECT max(accepted_at) FROM (SELECT accepted_at FROM jobs ORDER BY id DESC LIMIT 1) AS last
    UNION ALL SELECT max(set_at) FROM marks
);

-- name: lacking_rights
-- What this user may not do: nothing, where the file could be opened to be written.
SELECT NULL WHERE false;

-- name: version
SELECT sqlite_version();


-- ==== the audit, row by row: each statement gives the pipeline and job id of rows that can't be ====

-- name: audit_held_without_owner
SELECT pipeline, job_id FROM jobs WHERE state IN ('running', 'replaying') AND NOT EXISTS (
    SELECT 1 FROM owners WHERE owners.id = jobs.owner_id AND ended_at IS NULL AND lost_at IS NULL
);

-- name: audit_owned_but_not_held
SELECT pipeline, job_id FROM jobs WHERE owner_id IS NOT NULL AND state NOT IN ('running', 'replaying');

-- name: audit_replaying_without_replay
SELECT pipeline, job_id FROM jobs WHERE (state = 'replaying') <> (replay_id IS NOT NULL);

-- name: audit_answered_without_answer
SELECT pipeline, job_id FROM jobs
 WHERE state IN ('succeeded', 'recovered') AND NOT EXISTS (SELECT 1 FROM answers WHERE answers.job = jobs.id);

-- name: audit_unanswered_with_answer
-- A discarded job may have one: it came late, and what was paid for is kept.
SELECT pipeline, job_id FROM jobs JOIN answers ON answers.job = jobs.id
 WHERE state IN ('pending', 'running', 'parked', 'replaying');

-- name: audit_without_payload
SELECT pipeline, job_id FROM jobs
 WHERE NOT EXISTS (SELECT 1 FROM payloads WHERE payloads.job = jobs.id AND payloads.revision = jobs.revision);

-- name: audit_erased_with_texts
SELECT pipeline, job_id FROM jobs WHERE erased_at IS NOT NULL AND {texts};

-- name: audit_parked_without_class
SELECT pipeline, job_id FROM jobs
 WHERE state IN ('parked', 'replaying') AND (error_class IS NULL OR reason IS NULL OR parked_at IS NULL);

-- name: audit_discarded_without_origin
SELECT pipeline, job_id FROM jobs WHERE (state = 'discarded') <> (came_from IS NOT NULL);

-- name: audit_calls_and_attempts
SELECT pipeline, job_id FROM jobs
 WHERE calls <> calls_elsewhere + (SELECT count(*) FROM attempts WHERE job = jobs.id)
    OR calls <> (SELECT coalesce(max(number), 0) FROM attempts WHERE job = jobs.id);

-- name: audit_open_attempt_of_nobody
SELECT pipeline, job_id FROM attempts JOIN jobs ON jobs.id = attempts.job
 WHERE attempts.ended_at IS NULL AND NOT EXISTS (
    SELECT 1 FROM owners WHERE owners.id = attempts.owner_id AND owners.ended_at IS NULL AND owners.lost_at IS NULL
);


-- name: bodies_of_payloads
SELECT pipeline, job_id, CASE payloads.revision WHEN 0 THEN payload_hash END, codec, key_id, body
  FROM payloads JOIN jobs ON jobs.id = payloads.job WHERE codec NOT IN ('erased', 'omitted');

-- name: bodies_of_answers
SELECT pipeline, job_id, NULL, codec, key_id, body
  FROM answers JOIN jobs ON jobs.id = answers.job WHERE codec NOT IN ('erased', 'omitted');


-- ==== a whole ledger, table by table: see tables.py ====

-- name: columns_of_ledger
one, name, created_at

-- name: rows_of_ledger
SELECT {columns_of_ledger} FROM ledger ORDER BY one;

-- name: fill_ledger
INSERT INTO ledger ({columns_of_ledger})
VALUES (?, ?, ?);

-- name: columns_of_owners
id, token, role, host, boot_id, pid_namespace, pid, process_start, version, beat, started_at, beat_at, ended_at,
lost_at, pipeline, caller, checker, run_began_at

-- name: rows_of_owners
SELECT {columns_of_owners} FROM owners ORDER BY id;

-- name: fill_owners
INSERT INTO owners ({columns_of_owners})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: columns_of_replays
id, name, who, filters, trigger, started_at, ended_at, recovered, parked_again, released

-- name: rows_of_replays
SELECT {columns_of_replays} FROM replays ORDER BY id;

-- name: fill_replays
INSERT INTO replays ({columns_of_replays})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: columns_of_jobs
id, pipeline, batch, job_id, model, state, came_from, error_class, reason, kind, scope, fingerprint, calls,
calls_elsewhere, strikes, replays, auto_replays, not_before, place, caller, checker, accepted_at, started_at,
parked_at, finished_at, owner_id, replay_id, trace_id, span_id, note, payload_hash, revision, erased_at

-- name: rows_of_jobs
SELECT {columns_of_jobs} FROM jobs ORDER BY id;

-- name: fill_jobs
INSERT INTO jobs ({columns_of_jobs})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: columns_of_payloads
job, revision, model, codec, key_id, body, stored_at, note

-- name: rows_of_payloads
SELECT {columns_of_payloads} FROM payloads ORDER BY job, revision;

-- name: fill_payloads
INSERT INTO payloads ({columns_of_payloads})
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: columns_of_answers
job, attempt, codec, key_id, body, answered_at, handed_out_at, delivered_at, deliveries, deliver_after, delivery_fault

-- name: rows_of_answers
SELECT {columns_of_answers} FROM answers ORDER BY job;

-- name: fill_answers
INSERT INTO answers ({columns_of_answers})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: columns_of_attempts
job, number, replay_id, owner_id, model, revision, strike, started_at, ended_at, duration_s, answered, interrupted,
kind, reason, scope, status, rule, fingerprint, quota_id, message, retry_after_s, tokens_in, tokens_out, response_id,
trace_id, span_id, message_key_id

-- name: rows_of_attempts
SELECT {columns_of_attempts} FROM attempts ORDER BY job, number;

-- name: fill_attempts
INSERT INTO attempts ({columns_of_attempts})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: columns_of_counters
metric, pipeline, model, a, b, value, first_at, trace_id, span_id, example_value, example_at

-- name: rows_of_counters
SELECT {columns_of_counters} FROM counters ORDER BY metric, pipeline, model, a, b;

-- name: fill_counters
INSERT INTO counters ({columns_of_counters})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: columns_of_gates
model, reason, closed_until, probe_interval_s, pace_per_s, outage_since, prober, probe_began_at,
last_success_began_at, changed_at, pace_learnt_at

-- name: rows_of_gates
SELECT {columns_of_gates} FROM gates ORDER BY model;

-- name: fill_gates
INSERT INTO gates ({columns_of_gates})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: columns_of_pauses
pipeline, model, reason, fault_began_at, since, until, owner_id

-- name: rows_of_pauses
SELECT {columns_of_pauses} FROM pauses ORDER BY pipeline, model;

-- name: fill_pauses
INSERT INTO pauses ({columns_of_pauses})
VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: columns_of_leases
task, owner_id, taken_at

-- name: rows_of_leases
SELECT {columns_of_leases} FROM leases ORDER BY task;

-- name: fill_leases
INSERT INTO leases ({columns_of_leases})
VALUES (?, ?, ?);

-- name: columns_of_marks
name, value, set_at

-- name: rows_of_marks
SELECT {columns_of_marks} FROM marks ORDER BY name;

-- name: fill_marks
INSERT INTO marks ({columns_of_marks})
VALUES (?, ?, ?);

-- name: anything
-- No row: nothing was ever done with this ledger.
SELECT 1 WHERE EXISTS (SELECT 1 FROM owners) OR EXISTS (SELECT 1 FROM jobs) OR EXISTS (SELECT 1 FROM replays)
    OR EXISTS (SELECT 1 FROM counters) OR EXISTS (SELECT 1 FROM marks) OR EXISTS (SELECT 1 FROM leases)
    OR EXISTS (SELECT 1 FROM gates) OR EXISTS (SELECT 1 FROM pauses);

-- name: forget_name
-- Make room for the word of the ledger that is copied here.
DELETE FROM ledger;

-- name: last_ids
-- The highest id that each table ever gave out.
-- No row for one: none.
SELECT name, seq FROM sqlite_sequence;

-- name: go_on_from
-- Give out no id again, up to this one.
INSERT OR REPLACE INTO sqlite_sequence (rowid, name, seq)
VALUES (
    (SELECT rowid FROM sqlite_sequence WHERE name = :name), :name,
    max(:last, coalesce((SELECT seq FROM sqlite_sequence WHERE name = :name), 0))
);
