-- Every statement that parked sends to a PostgreSQL ledger, by name. `{name}` stands for the text of that name.
-- The names are those of sqlite.sql. Where SQLite runs a statement a row, one statement does all rows of a batch here:
-- they come as one JSON array, or as an array a column where there are bodies. Values are always bound.
-- What is to be written was decided in moves.py, from rows that were read, and locked, in the same transaction.
-- Jobs are locked in the order of their ids, with NO KEY UPDATE, which lets rows of other tables refer to them.

-- name: due
-- Whether a job's time has come; by the server's clock where no time is given. Where the clock was set back behind its
-- start, the clock can't tell, and it has.
(
    jobs.not_before IS NULL
    OR jobs.not_before <= coalesce(%(now)s::float8, extract(epoch FROM statement_timestamp())::float8)
    OR jobs.started_at > coalesce(%(now)s::float8, extract(epoch FROM statement_timestamp())::float8)
)

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
-- Behind this place a block of the line is this transaction's own.
SELECT nextval('parked.places');

-- name: accept
-- Take jobs on: as pending, or started at once. They are stored in the order of their key, in which two transactions
-- that take on the same jobs wait for each other, and numbered in the order in which they came.
-- No row for a job: it is known already.
WITH given AS MATERIALIZED (
    SELECT nextval('parked.job_ids') AS id, item.*
      FROM json_to_recordset(%(jobs)s::json) AS item (
               pipeline text, batch text, job_id text, model text, state text, calls bigint, place bigint, caller text,
               checker text, accepted_at float8, started_at float8, owner_id bigint, trace_id text, span_id text,
               payload_hash text
           )
)
INSERT INTO parked.jobs (
    id, pipeline, batch, job_id, model, state, calls, place, caller, checker, accepted_at, started_at, owner_id,
    trace_id, span_id, payload_hash
)
SELECT id, pipeline, batch, job_id, model, state, calls, place, caller, checker, accepted_at, started_at, owner_id,
       trace_id, span_id, decode(payload_hash, 'hex')
  FROM given ORDER BY job_id COLLATE "C", pipeline COLLATE "C", batch COLLATE "C"
    ON CONFLICT (job_id, pipeline, batch) DO NOTHING
RETURNING id, place;

-- name: keep_payload
-- Store what was accepted.
INSERT INTO parked.payloads (job, revision, codec, key_id, body, stored_at)
SELECT job, 0, codec, key_id, body, %(now)s
  FROM unnest(%(jobs)s::bigint[], %(codecs)s::text[], %(key_ids)s::text[], %(bodies)s::bytea[])
    AS given (job, codec, key_id, body);

-- name: mend_payload
-- Store the next revision of what jobs send: another payload, another model, or both.
INSERT INTO parked.payloads (job, revision, model, codec, key_id, body, stored_at, note)
SELECT was.job, was.revision + 1, coalesce(given.model, was.model), coalesce(given.codec, was.codec),
       CASE WHEN given.codec IS NULL THEN was.key_id ELSE given.key_id END, coalesce(given.body, was.body), %(now)s,
       given.note
  FROM unnest(
           %(jobs)s::bigint[], %(revisions)s::bigint[], %(models)s::text[], %(notes)s::text[], %(codecs)s::text[],
           %(key_ids)s::text[], %(bodies)s::bytea[]
       ) AS given (job, revision, model, note, codec, key_id, body)
  JOIN parked.payloads AS was ON was.job = given.job AND was.revision = given.revision;

-- name: mend_job
-- Let parked jobs send their next revision.
-- The state is only compared, here and below: were it a reason to go by an index on that state, the planner might read all
-- of that.
UPDATE parked.jobs SET revision = given.revision + 1
  FROM unnest(%(jobs)s::bigint[], %(revisions)s::bigint[]) AS given (job, revision)
 WHERE jobs.id = given.job AND jobs.state || '' = 'parked' AND jobs.revision = given.revision;

-- name: keep_model
-- Note for which models jobs were meant so far, before they get others.
UPDATE parked.payloads SET model = given.was
  FROM unnest(%(jobs)s::bigint[], %(was)s::text[]) AS given (job, was)
 WHERE payloads.job = given.job AND payloads.model IS NULL;

-- name: give_model
-- Give pending jobs other models: in their rows, since each goes in the lane of that model now.
-- A division by zero: one isn't pending as it was read, and the transaction must not go on (see `move_job`).
WITH given AS (
    SELECT * FROM unnest(
               %(jobs)s::bigint[], %(revisions)s::bigint[], %(models)s::text[], %(strikes)s::bigint[],
               %(not_befores)s::float8[]
           ) AS given (job, revision, model, strikes, not_before)
), moved AS (
UPDATE parked.jobs
   SET model = given.model, revision = given.revision + 1, strikes = given.strikes, not_before = given.not_before
  FROM given
 WHERE jobs.id = given.job AND jobs.state || '' = 'pending' AND jobs.revision = given.revision
RETURNING jobs.id
) SELECT 1 / (count(*) = (SELECT count(*) FROM given))::int FROM moved;

-- name: job_by_key
-- The jobs of these pipelines, batches and job ids.
-- No row for one: it was never accepted, or retention removed it.
SELECT {job} FROM parked.jobs
  JOIN unnest(%(job_ids)s::text[], %(pipelines)s::text[], %(batches)s::text[]) AS given (job_id, pipeline, batch)
    ON jobs.job_id = given.job_id AND jobs.pipeline = given.pipeline AND jobs.batch = given.batch
 ORDER BY jobs.id FOR NO KEY UPDATE OF jobs;

-- name: called_elsewhere
-- Note calls that no attempt tells of.
UPDATE parked.jobs SET calls_elsewhere = calls_elsewhere + given.calls
  FROM unnest(%(ids)s::bigint[], %(calls)s::bigint[]) AS given (id, calls)
 WHERE jobs.id = given.id;


-- ==== a job's course ====

-- name: jobs_by_id
-- The jobs of these ids.
-- No row for an id: retention removed the job.
SELECT {job} FROM parked.jobs WHERE id = ANY(%(ids)s::bigint[]) ORDER BY id FOR NO KEY UPDATE;

-- name: attempt
-- How the attempts of these numbers of these jobs stand; of a job's last one where no number is given. Not joined to
-- jobs_by_id: who had to wait for the lock there would get the attempt as it was before.
-- No row for one: there is none of that number.
SELECT attempts.job, attempts.number, attempts.started_at, attempts.ended_at, attempts.answered, attempts.interrupted
  FROM unnest(%(ids)s::bigint[], %(numbers)s::bigint[]) AS given (id, number)
  JOIN parked.jobs ON jobs.id = given.id
  JOIN parked.attempts ON attempts.job = jobs.id AND attempts.number = coalesce(given.number, jobs.calls);

-- name: move_job
-- Write all that a batch decided: jobs as they are after a move, their attempts, and answers.
-- A division by zero: a job is not as the move found it, and the transaction must not go on. So nobody has to wait for
-- the answer.
WITH moved AS (
UPDATE parked.jobs
   SET state = given.state, came_from = given.came_from, error_class = given.error_class, reason = given.reason,
       kind = given.kind, scope = given.scope, fingerprint = given.fingerprint, calls = given.calls,
       strikes = given.strikes, replays = given.replays, not_before = given.not_before, place = given.place,
       started_at = given.started_at, parked_at = given.parked_at, finished_at = given.finished_at,
       owner_id = given.owner_id, replay_id = given.replay_id, trace_id = given.trace_id, span_id = given.span_id,
       note = given.note, auto_replays = given.auto_replays
  FROM json_to_recordset(%(moved)s::json) AS given (
           id bigint, was text, was_owner bigint, was_calls bigint, state text, came_from text, error_class text,
           reason text, kind text, scope text, fingerprint text, calls bigint, strikes bigint, replays bigint,
           not_before float8, place bigint, started_at float8, parked_at float8, finished_at float8, owner_id bigint,
           replay_id bigint, trace_id text, span_id text, note text, auto_replays bigint
       )
 WHERE jobs.id = given.id AND jobs.state = given.was AND jobs.calls = given.was_calls
   AND jobs.owner_id IS NOT DISTINCT FROM given.was_owner
RETURNING jobs.id
), opened AS ({open_attempt}), closed AS ({close_attempt}), answered AS ({keep_answer})
SELECT 1 / (count(*) = json_array_length(%(moved)s::json))::int FROM moved;

-- name: open_attempt
-- Note that calls are about to be made.
INSERT INTO parked.attempts (job, number, replay_id, owner_id, revision, started_at)
SELECT job, number, replay_id, owner_id, revision, %(now)s
  FROM json_to_recordset(%(opened)s::json) AS given (
           job bigint, number bigint, replay_id bigint, owner_id bigint, revision bigint
       );

-- name: close_attempt
-- Note how calls ended, or what is now known of some that were closed without their outcome.
UPDATE parked.attempts
   SET ended_at = %(now)s, strike = given.strike <> 0, answered = given.answered <> 0,
       interrupted = given.interrupted <> 0, duration_s = given.duration_s, kind = given.kind, reason = given.reason,
       scope = given.scope, status = given.status, rule = given.rule, fingerprint = given.fingerprint,
       quota_id = given.quota_id, message = given.message,
       message_key_id = given.message_key_id, retry_after_s = given.retry_after_s,
       tokens_in = given.tokens_in, tokens_out = given.tokens_out, response_id = given.response_id,
       trace_id = given.trace_id, span_id = given.span_id
  FROM json_to_recordset(%(closed)s::json) AS given (
           job bigint, number bigint, strike int, answered int, interrupted int, duration_s float8,
           kind text, reason text, scope text, status bigint, rule text, fingerprint text, quota_id text, message text,
           message_key_id text, retry_after_s float8, tokens_in bigint, tokens_out bigint, response_id text, trace_id text, span_id text
       )
 WHERE attempts.job = given.job AND attempts.number = given.number;

-- name: forgive_attempt
-- Take back strikes.
UPDATE parked.attempts SET strike = FALSE
  FROM unnest(%(jobs)s::bigint[], %(numbers)s::int[]) AS forgiven (job, number)
 WHERE attempts.job = forgiven.job AND attempts.number = forgiven.number;

-- name: keep_answer
-- Store answers.
-- No row for one: there is one already, and the first stands.
INSERT INTO parked.answers (job, attempt, codec, key_id, body, answered_at)
SELECT job, attempt, codec, key_id, body, %(now)s
  FROM ROWS FROM (
           json_to_recordset(%(answered)s::json) AS (job bigint, attempt bigint, codec text, key_id text),
           unnest(%(bodies)s::bytea[])
       ) AS given (job, attempt, codec, key_id, body)
ON CONFLICT (job) DO NOTHING;

-- name: lanes
-- The lanes that hold pending jobs whose time has come. Each lane is found from the one before in one look-up.
-- This and the next two are asked without sorting (`unsorted`).
WITH RECURSIVE firsts AS (
    (SELECT pipeline, caller, checker, model FROM parked.jobs WHERE state = 'pending'
      ORDER BY pipeline, caller, checker, model LIMIT 1)
    UNION ALL
    SELECT next.* FROM firsts CROSS JOIN LATERAL (
        SELECT jobs.pipeline, jobs.caller, jobs.checker, jobs.model FROM parked.jobs
         WHERE state = 'pending'
           AND (jobs.pipeline, jobs.caller, jobs.checker, jobs.model)
             > (firsts.pipeline, firsts.caller, firsts.checker, firsts.model)
         ORDER BY jobs.pipeline, jobs.caller, jobs.checker, jobs.model LIMIT 1
    ) AS next
)
SELECT lane.* FROM firsts AS lane CROSS JOIN LATERAL (
    SELECT FROM parked.jobs
     WHERE state = 'pending' AND jobs.pipeline = lane.pipeline AND jobs.caller = lane.caller
       AND jobs.checker = lane.checker AND jobs.model = lane.model
       AND {due}
     ORDER BY jobs.place, jobs.id LIMIT 1
) AS first_due;

-- name: heads
-- The first pending jobs of each lane whose time has come, in order of place, as many as are wanted of it, without those
-- that another worker is just taking.
SELECT head.* FROM unnest(
           %(pipelines)s::text[], %(callers)s::text[], %(checkers)s::text[], %(models)s::text[], %(limits)s::bigint[]
       ) AS lane (pipeline, caller, checker, model, most)
 CROSS JOIN LATERAL (
    SELECT {job} FROM parked.jobs
     WHERE state = 'pending' AND jobs.pipeline = lane.pipeline AND jobs.caller = lane.caller
       AND jobs.checker = lane.checker AND jobs.model = lane.model
       AND {due}
     ORDER BY jobs.place, jobs.id LIMIT lane.most FOR NO KEY UPDATE SKIP LOCKED
) AS head;

-- name: tails
-- The last ones instead.
SELECT tail.* FROM unnest(
           %(pipelines)s::text[], %(callers)s::text[], %(checkers)s::text[], %(models)s::text[], %(limits)s::bigint[]
       ) AS lane (pipeline, caller, checker, model, most)
 CROSS JOIN LATERAL (
    SELECT {job} FROM parked.jobs
     WHERE state = 'pending' AND jobs.pipeline = lane.pipeline AND jobs.caller = lane.caller
       AND jobs.checker = lane.checker AND jobs.model = lane.model
       AND {due}
     ORDER BY jobs.place DESC, jobs.id DESC LIMIT lane.most FOR NO KEY UPDATE SKIP LOCKED
) AS tail;

-- name: payload
-- What a job sends: its payload, or the mended one that stands for it.
-- No row: no such job.
SELECT codec, key_id, body FROM parked.payloads
  JOIN parked.jobs ON jobs.id = payloads.job AND jobs.revision = payloads.revision
 WHERE jobs.id = %(id)s;

-- name: payloads
-- The same for jobs by their ids.
SELECT jobs.id, codec, key_id, body FROM parked.payloads
  JOIN parked.jobs ON jobs.id = payloads.job AND jobs.revision = payloads.revision
 WHERE jobs.id = ANY(%(ids)s::bigint[]);

-- name: payloads_kept_otherwise
-- Jobs in a state, of a pipeline or (NULL) of all, whose payload is encrypted or was never stored.
SELECT jobs.id, payloads.codec, payloads.key_id
  FROM parked.jobs JOIN parked.payloads ON payloads.job = jobs.id AND payloads.revision = jobs.revision
 WHERE jobs.state = %(state)s AND (payloads.key_id IS NOT NULL OR payloads.codec = 'omitted')
   AND (%(pipeline)s::text IS NULL OR jobs.pipeline = %(pipeline)s);

-- name: keys_used
-- With which key what is encrypted (NULL: with none), and how much; a look at every row. `pending` is among `payloads`.
SELECT 'payloads', key_id, count(*) FROM parked.payloads WHERE codec NOT IN ('erased', 'omitted') GROUP BY key_id
UNION ALL
SELECT 'answers', key_id, count(*) FROM parked.answers WHERE codec NOT IN ('erased', 'omitted') GROUP BY key_id
UNION ALL
SELECT 'messages', message_key_id, count(*) FROM parked.attempts WHERE message <> '' GROUP BY message_key_id
UNION ALL
SELECT 'pending', key_id, count(*)
  FROM parked.jobs JOIN parked.payloads ON payloads.job = jobs.id AND payloads.revision = jobs.revision
 WHERE state = 'pending' AND codec NOT IN ('erased', 'omitted') GROUP BY key_id;

-- name: identity_keys
-- With which keys the identities of payloads were made: a keyed one begins with the id of its key.
SELECT encode(substr(payload_hash, 1, 4), 'hex'), count(*) FROM parked.jobs WHERE length(payload_hash) > 32 GROUP BY 1;

-- name: payloads_under_other_keys
SELECT payloads.job, payloads.revision, codec, key_id, body, CASE payloads.revision WHEN 0 THEN payload_hash END
  FROM parked.payloads JOIN parked.jobs ON jobs.id = payloads.job
 WHERE (payloads.job, payloads.revision) > (%(job)s, %(number)s) AND key_id IS DISTINCT FROM %(key_id)s::text AND codec NOT IN ('erased', 'omitted')
 ORDER BY payloads.job, payloads.revision LIMIT %(limit)s;

-- name: answers_under_other_keys
SELECT job, 0, codec, key_id, body, NULL FROM parked.answers
 WHERE (job, 0) > (%(job)s, %(number)s) AND key_id IS DISTINCT FROM %(key_id)s::text AND codec NOT IN ('erased', 'omitted') ORDER BY job LIMIT %(limit)s;

-- name: messages_under_other_keys
SELECT job, number, '', message_key_id, message, NULL FROM parked.attempts
 WHERE (job, number) > (%(job)s, %(number)s) AND message_key_id IS DISTINCT FROM %(key_id)s::text AND message <> '' ORDER BY job, number LIMIT %(limit)s;

-- name: has_answer
-- No row: no answer is stored for this job.
SELECT 1 FROM parked.answers WHERE job = %(job)s;

-- name: hand_out
-- Note that answers were written out; the first time counts. It is no reason to go by the index on that time: most answers
-- may have none yet.
UPDATE parked.answers SET handed_out_at = %(now)s WHERE job = ANY(%(jobs)s::bigint[]) AND handed_out_at + 0 IS NULL;

-- name: make_deliverable
-- Let the answers of jobs that have just recovered be delivered.
UPDATE parked.answers SET deliver_after = %(now)s WHERE job = ANY(%(jobs)s::bigint[]) AND delivered_at IS NULL;

-- name: note_delivery
-- Note what came of delivering answers. Where nothing was wrong one is delivered, and handed out thereby.
UPDATE parked.answers
   SET deliveries = answers.deliveries + 1, delivery_fault = given.fault,
       deliver_after = %(now)s::float8 + given.wait_s,
       delivered_at = CASE WHEN given.fault IS NULL THEN coalesce(answers.delivered_at, %(now)s::float8)
                           ELSE answers.delivered_at END,
       handed_out_at = CASE WHEN given.fault IS NULL THEN coalesce(answers.handed_out_at, %(now)s::float8)
                            ELSE answers.handed_out_at END
  FROM unnest(%(jobs)s::bigint[], %(faults)s::text[], %(waits_s)s::float8[]) AS given (job, fault, wait_s)
 WHERE answers.job = given.job;


-- name: erase_payloads
-- Empty what jobs send, mended payloads too. The first says why.
UPDATE parked.payloads
   SET codec = %(codec)s, key_id = NULL, body = ''::bytea,
       note = CASE payloads.revision WHEN 0 THEN given.why ELSE note END
  FROM unnest(%(jobs)s::bigint[], %(whys)s::text[]) AS given (job, why)
 WHERE payloads.job = given.job;

-- name: erase_answer
-- No row for a job: it has none.
UPDATE parked.answers SET codec = %(codec)s, key_id = NULL, body = ''::bytea, delivery_fault = NULL
 WHERE job = ANY(%(jobs)s::bigint[]);

-- name: erase_messages
UPDATE parked.attempts SET message = '', message_key_id = NULL WHERE job = ANY(%(jobs)s::bigint[]);

-- name: note_erasure
UPDATE parked.jobs SET erased_at = coalesce(erased_at, %(now)s) WHERE id = ANY(%(jobs)s::bigint[]);

-- name: rekey_payloads
-- Keep texts in another way.
-- No row for one, here and below: it was erased, or kept in another way by somebody else.
UPDATE parked.payloads SET codec = given.codec, key_id = given.key_id, body = given.body
  FROM unnest(%(codec)s::text[], %(key_id)s::text[], %(body)s::bytea[], %(job)s::bigint[], %(number)s::bigint[],
              %(was_codec)s::text[], %(was_key_id)s::text[])
       AS given (codec, key_id, body, job, number, was_codec, was_key_id)
 WHERE payloads.job = given.job AND payloads.revision = given.number
   AND payloads.codec = given.was_codec AND payloads.key_id IS NOT DISTINCT FROM given.was_key_id;

-- name: rekey_answers
UPDATE parked.answers SET codec = given.codec, key_id = given.key_id, body = given.body
  FROM unnest(%(codec)s::text[], %(key_id)s::text[], %(body)s::bytea[], %(job)s::bigint[], %(number)s::bigint[],
              %(was_codec)s::text[], %(was_key_id)s::text[])
       AS given (codec, key_id, body, job, number, was_codec, was_key_id)
 WHERE answers.job = given.job AND 0 = given.number
   AND answers.codec = given.was_codec AND answers.key_id IS NOT DISTINCT FROM given.was_key_id;

-- name: rekey_messages
UPDATE parked.attempts SET message_key_id = given.key_id, message = given.message
  FROM unnest(%(key_id)s::text[], %(message)s::text[], %(job)s::bigint[], %(number)s::bigint[], %(was_key_id)s::text[],
              %(was_message)s::text[]) AS given (key_id, message, job, number, was_key_id, was_message)
 WHERE attempts.job = given.job AND attempts.number = given.number
   AND attempts.message_key_id IS NOT DISTINCT FROM given.was_key_id AND attempts.message = given.was_message;

-- name: rekey_identities
UPDATE parked.jobs SET payload_hash = given.hash
  FROM unnest(%(hash)s::bytea[], %(job)s::bigint[], %(was_hash)s::bytea[]) AS given (hash, job, was_hash)
 WHERE jobs.id = given.job AND jobs.payload_hash = given.was_hash;

-- name: texts
-- Whether anything that erasing removes can still be read of a row of jobs.
(
    EXISTS (SELECT 1 FROM parked.payloads WHERE payloads.job = jobs.id AND payloads.codec <> 'erased')
    OR EXISTS (SELECT 1 FROM parked.answers WHERE answers.job = jobs.id AND answers.codec <> 'erased')
    OR EXISTS (SELECT 1 FROM parked.attempts WHERE attempts.job = jobs.id AND attempts.message <> '')
)

-- name: has_texts
-- No row: nothing of them is left.
SELECT 1 FROM parked.jobs WHERE id = %(job)s AND {texts};

-- name: erased_with_texts
-- Jobs that were erased and got a text again.
SELECT id FROM parked.jobs WHERE erased_at IS NOT NULL AND {texts};

-- name: to_be_handed_out
-- Whether a row of jobs has an answer that nobody was handed yet. The offset keeps it from becoming a join, of which the
-- planner may take the wrong side first: a look-up a row.
EXISTS (
    SELECT 1 FROM parked.answers
     WHERE answers.job = jobs.id AND answers.handed_out_at IS NULL AND answers.codec NOT IN ('erased', 'omitted')
    OFFSET 0
)

-- name: forgettable
-- Finished jobs that may be forgotten, behind an id.
SELECT id FROM parked.jobs
 WHERE id > %(after)s AND state IN ('succeeded', 'recovered', 'discarded') AND finished_at < %(before)s
   AND NOT {to_be_handed_out}
 ORDER BY id LIMIT %(limit)s;

-- name: forget_jobs
-- Remove jobs, and by their foreign keys all that belongs to them.
-- No row for one: its answer is still to be handed out.
DELETE FROM parked.jobs WHERE id = ANY(%(ids)s::bigint[]) AND NOT {to_be_handed_out} RETURNING id;


-- ==== counters ====

-- name: counted_pairs
-- What jobs count under: a pair of pipeline and model is let in with its first count.
SELECT DISTINCT pipeline, model FROM parked.counters WHERE metric = 'jobs_accepted';

-- name: count
-- Add to label sets, which begin with their first move; or set them, where the latest counts.
INSERT INTO parked.counters (
    metric, pipeline, model, a, b, slot, value, first_at, trace_id, span_id, example_value, example_at
)
SELECT metric, pipeline, model, a, b, %(slot)s, value, now, trace_id, span_id, example_value, example_at
  FROM json_to_recordset(%(counters)s::json) AS given (
           metric text, pipeline text, model text, a text, b text, value float8, now float8, trace_id text,
           span_id text, example_value float8, example_at float8
       )
 ORDER BY metric COLLATE "C", pipeline COLLATE "C", model COLLATE "C", a COLLATE "C", b COLLATE "C"
ON CONFLICT (metric, pipeline, model, a, b, slot) DO UPDATE
   SET value = CASE WHEN counters.metric = ANY(%(latest)s::text[]) THEN excluded.value
                    ELSE counters.value + excluded.value END,
       trace_id = coalesce(excluded.trace_id, counters.trace_id),
       span_id = coalesce(excluded.span_id, counters.span_id),
       example_value = coalesce(excluded.example_value, counters.example_value),
       example_at = coalesce(excluded.example_at, counters.example_at);


-- ==== owners, replays, leases, marks ====

-- name: register
-- Enter a process as an owner. One that is there came from a commit whose answer was lost.
INSERT INTO parked.owners (
    token, role, host, boot_id, pid_namespace, pid, process_start, version, started_at, beat_at
) VALUES (
    %(token)s, %(role)s, %(host)s, %(boot_id)s, %(pid_namespace)s, %(pid)s, %(process_start)s, %(version)s, %(now)s,
    %(now)s
) ON CONFLICT (token) DO UPDATE SET beat_at = excluded.beat_at RETURNING id;

-- name: beat
-- Raise an owner's beat.
-- No row: it has ended, or was declared lost.
UPDATE parked.owners SET beat = beat + 1, beat_at = %(now)s WHERE id = %(id)s AND ended_at IS NULL AND lost_at IS NULL
RETURNING id;

-- name: owners_alive
-- All owners that are neither ended nor lost.
SELECT {owner} FROM parked.owners WHERE ended_at IS NULL AND lost_at IS NULL;

-- name: owner_alive
-- Locked, so that nobody declares it lost before this transaction has given it a job: who does waits, and finds that job.
-- No row: this owner has ended or was declared lost.
SELECT 1 FROM parked.owners WHERE id = %(id)s AND ended_at IS NULL AND lost_at IS NULL FOR SHARE;

-- name: owners
-- All owners ever, in the order of their coming.
SELECT {owner} FROM parked.owners ORDER BY id;

-- name: owners_counted
-- How many there are now, and how many were declared lost since.
SELECT (SELECT count(*) FROM parked.owners WHERE ended_at IS NULL AND lost_at IS NULL),
       (SELECT count(*) FROM parked.owners WHERE lost_at >= %(since)s);

-- name: lose
-- Declare an owner lost.
-- No row: its beat moved since it was seen to stand still, or it has ended, or it is lost already.
UPDATE parked.owners SET lost_at = %(now)s
 WHERE id = %(id)s AND beat = %(beat)s AND ended_at IS NULL AND lost_at IS NULL
RETURNING id;

-- name: leave
-- An owner ends in order.
-- No row: it has ended already, or was declared lost.
UPDATE parked.owners SET ended_at = %(now)s WHERE id = %(id)s AND ended_at IS NULL AND lost_at IS NULL
RETURNING id;

-- name: other_run
-- The living owner that began first to run a pipeline, but for one.
-- No row: nobody else runs it.
SELECT {owner} FROM parked.owners
 WHERE ended_at IS NULL AND lost_at IS NULL AND pipeline = %(pipeline)s AND id <> %(owner_id)s
 ORDER BY run_began_at, id LIMIT 1;

-- name: note_run
-- Note what an owner runs.
-- No row: it has ended, or was declared lost.
UPDATE parked.owners SET pipeline = %(pipeline)s, caller = %(caller)s, checker = %(checker)s, run_began_at = %(now)s
 WHERE id = %(owner_id)s AND ended_at IS NULL AND lost_at IS NULL
RETURNING id;

-- name: end_run
-- An owner runs nothing any more.
UPDATE parked.owners SET pipeline = NULL WHERE id = %(owner_id)s;

-- name: held_by
-- The jobs that an owner holds.
SELECT id FROM parked.jobs WHERE owner_id = %(owner_id)s ORDER BY id FOR NO KEY UPDATE;

-- name: open_attempts_of
-- The attempts that an owner left open, of whatever job. Both are locked: an answer may be just coming in.
SELECT attempts.job, attempts.number, attempts.started_at, attempts.ended_at, attempts.answered, attempts.interrupted
  FROM parked.attempts JOIN parked.jobs ON jobs.id = attempts.job
 WHERE attempts.owner_id = %(owner_id)s AND attempts.ended_at IS NULL
 ORDER BY jobs.id FOR NO KEY UPDATE OF jobs, attempts;

-- name: open_replay
-- Enter a replay.
INSERT INTO parked.replays (name, who, filters, trigger, started_at)
VALUES (%(name)s, %(who)s, %(filters)s, %(trigger)s, %(now)s) RETURNING id;

-- name: close_replay
-- Note what a replay came to.
UPDATE parked.replays
   SET recovered = %(recovered)s, parked_again = %(parked_again)s, released = %(released)s, ended_at = %(now)s
 WHERE id = %(id)s;

-- name: trigger
-- What set off a replay.
SELECT trigger FROM parked.replays WHERE id = %(id)s;

-- name: take_lease
-- Take or renew the lease of a task.
-- No row: another owner that lives holds it.
INSERT INTO parked.leases (task, owner_id, taken_at) VALUES (%(task)s, %(owner_id)s, %(now)s)
ON CONFLICT (task) DO UPDATE SET owner_id = excluded.owner_id, taken_at = excluded.taken_at
 WHERE leases.owner_id = excluded.owner_id
    OR leases.taken_at <= %(now)s - %(ttl_s)s::float8
    -- Taken so far in the future: the clock was set back, and would keep it until that time comes again.
    OR leases.taken_at > %(now)s + %(ttl_s)s::float8
    OR NOT EXISTS (
        SELECT 1 FROM parked.owners WHERE id = leases.owner_id AND ended_at IS NULL AND lost_at IS NULL
    )
RETURNING task;

-- name: set_mark
-- Keep a fact by name.
INSERT INTO parked.marks (name, value, set_at) VALUES (%(name)s, %(value)s, %(now)s)
ON CONFLICT (name) DO UPDATE SET value = excluded.value, set_at = excluded.set_at;


-- ==== gates and pauses ====

-- name: set_gate
-- Tell how a gate stands. A pace that isn't known leaves what was learned.
INSERT INTO parked.gates (
    model, reason, closed_until, probe_interval_s, pace_per_s, pace_learnt_at, outage_since, last_success_began_at,
    changed_at
) VALUES (
    %(model)s, %(reason)s::text, %(closed_until)s::float8, %(probe_interval_s)s::float8, %(pace_per_s)s::float8,
    %(pace_learnt_at)s::float8, %(outage_since)s::float8, %(last_success_began_at)s::float8, %(now)s
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
  FROM parked.gates ORDER BY model;

-- name: claim_probe
-- Be the one who probes.
-- No row: the gate isn't closed by an outage there, or somebody has probed it too short a time ago.
UPDATE parked.gates SET prober = %(owner_id)s, probe_began_at = %(now)s
 WHERE model = %(model)s AND reason = 'outage' AND (probe_began_at IS NULL OR probe_began_at <= %(now)s - %(interval_s)s::float8)
RETURNING model;

-- name: last_probe
-- When an outage was last probed.
-- No row: no outage is noted there.
SELECT probe_began_at FROM parked.gates WHERE model = %(model)s AND reason = 'outage';

-- name: set_pause
-- Note a pause; the first call that met its fault stands.
INSERT INTO parked.pauses (pipeline, model, reason, fault_began_at, since, until, owner_id)
VALUES (%(pipeline)s, %(model)s, %(reason)s, %(fault_began_at)s, %(now)s, %(until)s::float8, %(owner_id)s)
ON CONFLICT (pipeline, model) DO UPDATE
   SET reason = excluded.reason, fault_began_at = excluded.fault_began_at, until = excluded.until,
       owner_id = excluded.owner_id;

-- name: clear_pause
-- A pause is over.
-- No row: there is none, or its fault was met later.
DELETE FROM parked.pauses WHERE pipeline = %(pipeline)s AND model = %(model)s AND fault_began_at <= %(began_at)s
RETURNING model;

-- name: pauses
SELECT pipeline, model, reason, fault_began_at, since, until, owner_id FROM parked.pauses ORDER BY pipeline, model;

-- name: first_that_met
-- The pending job, first in line, of which a call has failed for this reason. No row: none has.
SELECT job_id, batch FROM parked.jobs
 WHERE pipeline = %(pipeline)s AND state = 'pending' AND calls > 0
   AND EXISTS (SELECT 1 FROM parked.attempts WHERE attempts.job = jobs.id AND attempts.reason = %(reason)s)
 ORDER BY place LIMIT 1;

-- name: pauses_that_hold
-- The same without those that hold back nothing any more: what was pending there was discarded, say. A sidecar runs only
-- what it replays: the pause of one that lives holds back parked jobs, too.
SELECT pipeline, model, reason, fault_began_at, since, until, owner_id FROM parked.pauses
 WHERE EXISTS (
    SELECT 1 FROM parked.jobs
     WHERE state = 'pending' AND jobs.pipeline = pauses.pipeline AND pauses.model IN ('', jobs.model)
 ) OR EXISTS (
    SELECT 1 FROM parked.owners
     WHERE owners.id = pauses.owner_id AND role = 'sidecar' AND ended_at IS NULL AND lost_at IS NULL
 ) AND EXISTS (
    SELECT 1 FROM parked.jobs
     WHERE state = 'parked' AND jobs.pipeline = pauses.pipeline AND pauses.model IN ('', jobs.model)
 )
 ORDER BY pipeline, model;


-- ==== the schema ====

-- name: tables
-- What stands in the schema `parked`: a ledger, or something of another program. Needs no right to it.
SELECT relname FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
 WHERE nspname = 'parked' AND relkind IN ('r', 'p') ORDER BY relname <> 'schema_version' LIMIT 3;

-- name: applied_steps
-- The migrations that ran, and whether each was additive.
SELECT number, additive FROM parked.schema_version;

-- name: note_step
-- Note that a migration ran.
INSERT INTO parked.schema_version (number, additive, title, applied_at, applied_by)
VALUES (%(number)s, %(additive)s, %(title)s, %(now)s, %(by)s);

-- name: name_ledger
-- Give a new ledger its word.
INSERT INTO parked.ledger (one, name, created_at) VALUES (1, %(name)s, %(now)s);

-- name: users
-- Who uses the ledger just now.
SELECT host, pid, version FROM parked.owners WHERE ended_at IS NULL AND lost_at IS NULL ORDER BY id;


-- ==== asking ====

-- name: ledger_name
SELECT name FROM parked.ledger;

-- name: select_jobs
SELECT {job} FROM parked.jobs

-- name: count_jobs
SELECT count(*) FROM parked.jobs

-- name: where_state
state = %(state)s

-- name: where_parked
-- Spelled out, so that the indexes on parked jobs serve.
state = 'parked'

-- name: where_states
state = ANY(%(states)s::text[])

-- name: where_pipeline
pipeline = %(pipeline)s

-- name: where_batch
batch = %(batch)s

-- name: where_model
jobs.model = %(model)s

-- name: where_error_class
error_class = %(error_class)s

-- name: where_error_class_like
error_class LIKE %(error_class)s ESCAPE '\'

-- name: where_reason
reason = %(reason)s

-- name: where_fingerprint
fingerprint = %(fingerprint)s

-- name: where_job_ids
job_id = ANY(%(job_ids)s::text[])

-- name: where_job_id
job_id = %(job_id)s

-- name: where_since_parked
parked_at >= %(since)s

-- name: where_until_parked
parked_at < %(until)s

-- name: where_since_accepted
accepted_at >= %(since)s

-- name: where_until_accepted
accepted_at < %(until)s

-- name: where_since_answered
answered_at >= %(since)s

-- name: where_until_answered
answered_at < %(until)s

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
LIMIT %(limit)s

-- name: select_causes
-- Parked jobs that share a fingerprint, those apart that were erased; and the latest of them as an example.
SELECT fingerprint, error_class, reason, erased_at IS NOT NULL, count(*), min(parked_at), max(parked_at), max(id)
  FROM parked.jobs

-- name: by_cause
GROUP BY fingerprint, error_class, reason, erased_at IS NOT NULL ORDER BY count(*) DESC, max(parked_at) DESC

-- name: cause_counts
-- The same for all parked jobs, over a covering index, and how many of them are new. Those that were erased come in one
-- row for each time of erasing.
SELECT fingerprint, error_class, reason, erased_at, count(*), count(*) FILTER (WHERE parked_at >= %(since)s),
       min(parked_at), max(parked_at), max(id)
  FROM parked.jobs WHERE state = 'parked' GROUP BY fingerprint, error_class, reason, erased_at;

-- name: select_answers
SELECT {job}, answers.codec, answers.key_id, answers.body, answers.answered_at, answers.handed_out_at
  FROM parked.answers JOIN parked.jobs ON jobs.id = answers.job

-- name: undelivered
-- Answers that are due to be delivered, each with how often that was tried. A time that lies further ahead than any wait
-- was written before the clock was set back.
SELECT {job}, answers.codec, answers.key_id, answers.body, answers.answered_at, answers.handed_out_at,
       answers.deliveries
  FROM parked.answers JOIN parked.jobs ON jobs.id = answers.job
 WHERE answers.delivered_at IS NULL AND answers.deliver_after IS NOT NULL
   AND (answers.deliver_after <= %(now)s OR answers.deliver_after > %(now)s::float8 + %(longest_s)s::float8)
   AND (answers.handed_out_at IS NULL OR answers.answered_at >= %(since)s) AND {where_kept}
   AND answers.codec <> 'omitted'
 ORDER BY answers.deliver_after, answers.job LIMIT %(limit)s;

-- name: where_id
jobs.id = %(id)s

-- name: jobs_with_payloads
-- Jobs by their ids, in order of place, and what each sends.
SELECT {job}, payloads.codec, payloads.key_id, payloads.body, payloads.model
  FROM parked.jobs JOIN parked.payloads ON payloads.job = jobs.id AND payloads.revision = jobs.revision
 WHERE jobs.id = ANY(%(ids)s::bigint[]) ORDER BY jobs.place, jobs.id;

-- name: answer_bodies
-- The answers of jobs by their ids.
-- No row: that job has none, or it was erased.
SELECT job, codec, key_id, body FROM parked.answers WHERE job = ANY(%(ids)s::bigint[]) AND {where_kept};

-- name: identities
-- By which payload the known ones of these job ids go. The offset keeps it a look-up for each: where the statistics don't
-- know the pipeline, all of its jobs seem to be one.
SELECT known.* FROM unnest(%(job_ids)s::text[]) AS given (job_id) CROSS JOIN LATERAL (
    SELECT jobs.job_id, payload_hash FROM parked.jobs
     WHERE jobs.job_id = given.job_id AND pipeline = %(pipeline)s AND batch = %(batch)s
    OFFSET 0
) AS known;

-- name: erasure
-- No row: its texts were not erased.
SELECT erased_at, payloads.note FROM parked.jobs JOIN parked.payloads ON payloads.job = jobs.id AND payloads.revision = 0
 WHERE jobs.id = %(id)s AND erased_at IS NOT NULL;

-- name: attempts
-- A job's attempts in order, as AttemptRow.
SELECT number, replay_id, owner_id, strike, started_at, ended_at, duration_s, answered, interrupted, kind, reason, scope,
       status, rule, fingerprint, quota_id, message, retry_after_s, tokens_in, tokens_out, response_id, trace_id, span_id,
       attempts.revision, payloads.model, attempts.message_key_id
  FROM parked.attempts
  LEFT JOIN parked.payloads ON payloads.job = attempts.job AND payloads.revision = attempts.revision
 WHERE attempts.job = %(id)s ORDER BY number;

-- name: revisions
-- What a job was accepted with, and what replaced it, in order. The note of the first would say why it was erased.
SELECT revision, model, stored_at, CASE revision WHEN 0 THEN NULL ELSE note END FROM parked.payloads
 WHERE job = %(id)s ORDER BY revision;

-- name: select_counters
-- Label sets as CounterRow, over all slots: what is counted is the sum, what is set by the latest commit the greatest,
-- since those are times. An example is that of the slot which moved last.
SELECT metric, pipeline, model, a, b, CASE WHEN metric = ANY(%(latest)s::text[]) THEN max(value) ELSE sum(value) END,
       min(first_at), (array_agg(trace_id ORDER BY example_at DESC NULLS LAST))[1],
       (array_agg(span_id ORDER BY example_at DESC NULLS LAST))[1],
       (array_agg(example_value ORDER BY example_at DESC NULLS LAST))[1], max(example_at)
  FROM parked.counters

-- name: where_metrics
metric = ANY(%(metrics)s::text[])

-- name: by_label_set
GROUP BY metric, pipeline, model, a, b

-- name: oldest_parked
-- The first of each pipeline and class in the order of an index, each found from the one before in one look-up.
WITH RECURSIVE firsts AS (
    (SELECT pipeline, error_class, parked_at FROM parked.jobs WHERE state = 'parked'
      ORDER BY pipeline, error_class, parked_at LIMIT 1)
    UNION ALL
    SELECT next.* FROM firsts CROSS JOIN LATERAL (
        SELECT jobs.pipeline, jobs.error_class, jobs.parked_at FROM parked.jobs
         WHERE state = 'parked' AND (jobs.pipeline, jobs.error_class) > (firsts.pipeline, firsts.error_class)
         ORDER BY jobs.pipeline, jobs.error_class, jobs.parked_at LIMIT 1
    ) AS next
)
SELECT pipeline, error_class, parked_at FROM firsts;

-- name: oldest_pending
WITH RECURSIVE firsts AS (
    (SELECT pipeline, accepted_at FROM parked.jobs WHERE state = 'pending' ORDER BY pipeline, accepted_at LIMIT 1)
    UNION ALL
    SELECT next.* FROM firsts CROSS JOIN LATERAL (
        SELECT jobs.pipeline, jobs.accepted_at FROM parked.jobs
         WHERE state = 'pending' AND jobs.pipeline > firsts.pipeline
         ORDER BY jobs.pipeline, jobs.accepted_at LIMIT 1
    ) AS next
)
SELECT pipeline, '', accepted_at FROM firsts;

-- name: oldest_running
WITH RECURSIVE firsts AS (
    (SELECT pipeline, started_at FROM parked.jobs WHERE state = 'running' ORDER BY pipeline, started_at LIMIT 1)
    UNION ALL
    SELECT next.* FROM firsts CROSS JOIN LATERAL (
        SELECT jobs.pipeline, jobs.started_at FROM parked.jobs
         WHERE state = 'running' AND jobs.pipeline > firsts.pipeline
         ORDER BY jobs.pipeline, jobs.started_at LIMIT 1
    ) AS next
)
SELECT pipeline, '', started_at FROM firsts;

-- name: states
-- Rows by pipeline and state, over a covering index.
SELECT pipeline, state, count(*) FROM parked.jobs GROUP BY pipeline, state;

-- name: parked_rows
-- Parked rows by the labels of the gauge `parked_now`.
SELECT pipeline, model, error_class, reason, count(*) FROM parked.jobs WHERE state = 'parked'
 GROUP BY pipeline, model, error_class, reason;

-- name: mark
-- No row: it was never set.
SELECT value FROM parked.marks WHERE name = %(name)s;

-- name: marks
-- Those whose names begin so.
SELECT name, value FROM parked.marks WHERE starts_with(name, %(beginning)s) ORDER BY name COLLATE "C";

-- name: leases
-- Tasks, and who holds each.
SELECT task, {owner} FROM parked.leases JOIN parked.owners ON owners.id = leases.owner_id ORDER BY task;

-- name: room
-- What the tables take up, with their indexes and long values. Any role that may use the schema may ask this.
SELECT sum(pg_catalog.pg_total_relation_size(oid))::bigint FROM pg_catalog.pg_class
 WHERE relnamespace = 'parked'::regnamespace AND relkind = 'r';


-- ==== what surrounds it ====

-- name: clock
-- The database's clock, in UTC epoch seconds: the server's.
SELECT extract(epoch FROM clock_timestamp())::float8;

-- name: newest
-- When something last happened in it, as far as a few look-ups tell. NULL: nothing ever did.
SELECT max(at) FROM (
    SELECT max(beat_at) AS at FROM (SELECT beat_at FROM parked.owners ORDER BY id DESC LIMIT 100) AS latest
    UNION ALL SELECT max(accepted_at) FROM (SELECT accepted_at FROM parked.jobs ORDER BY id DESC LIMIT 1) AS last
    UNION ALL SELECT max(set_at) FROM parked.marks
) AS times;

-- name: lacking_rights
-- What this role may not do that a program which runs jobs has to; one that only shows needs the first alone.
SELECT lower(given.privilege) || ' ' || pg_class.relname
  FROM (VALUES ('SELECT'), ('INSERT'), ('UPDATE')) AS given (privilege), pg_catalog.pg_class
 WHERE relnamespace = 'parked'::regnamespace AND relkind = 'r' AND relname NOT IN ('schema_version', 'ledger')
   AND NOT pg_catalog.has_table_privilege(pg_class.oid, given.privilege)
 ORDER BY relname, given.privilege;

-- name: version
SELECT current_setting('server_version');


-- ==== the audit, row by row: each statement gives the pipeline and job id of rows that can't be ====

-- name: audit_held_without_owner
SELECT pipeline, job_id FROM parked.jobs WHERE state IN ('running', 'replaying') AND NOT EXISTS (
    SELECT 1 FROM parked.owners WHERE owners.id = jobs.owner_id AND ended_at IS NULL AND lost_at IS NULL
);

-- name: audit_owned_but_not_held
SELECT pipeline, job_id FROM parked.jobs WHERE owner_id IS NOT NULL AND state NOT IN ('running', 'replaying');

-- name: audit_replaying_without_replay
SELECT pipeline, job_id FROM parked.jobs WHERE (state = 'replaying') <> (replay_id IS NOT NULL);

-- name: audit_answered_without_answer
SELECT pipeline, job_id FROM parked.jobs
 WHERE state IN ('succeeded', 'recovered') AND NOT EXISTS (SELECT 1 FROM parked.answers WHERE answers.job = jobs.id);

-- name: audit_unanswered_with_answer
-- A discarded job may have one: it came late, and what was paid for is kept.
SELECT pipeline, job_id FROM parked.jobs JOIN parked.answers ON answers.job = jobs.id
 WHERE state IN ('pending', 'running', 'parked', 'replaying');

-- name: audit_without_payload
SELECT pipeline, job_id FROM parked.jobs
 WHERE NOT EXISTS (SELECT 1 FROM parked.payloads WHERE payloads.job = jobs.id AND payloads.revision = jobs.revision);

-- name: audit_erased_with_texts
SELECT pipeline, job_id FROM parked.jobs WHERE erased_at IS NOT NULL AND {texts};

-- name: audit_parked_without_class
SELECT pipeline, job_id FROM parked.jobs
 WHERE state IN ('parked', 'replaying') AND (error_class IS NULL OR reason IS NULL OR parked_at IS NULL);

-- name: audit_discarded_without_origin
SELECT pipeline, job_id FROM parked.jobs WHERE (state = 'discarded') <> (came_from IS NOT NULL);

-- name: audit_calls_and_attempts
SELECT pipeline, job_id FROM parked.jobs
 WHERE calls <> calls_elsewhere + (SELECT count(*) FROM parked.attempts WHERE job = jobs.id)
    OR calls <> (SELECT coalesce(max(number), 0) FROM parked.attempts WHERE job = jobs.id);

-- name: audit_open_attempt_of_nobody
SELECT pipeline, job_id FROM parked.attempts JOIN parked.jobs ON jobs.id = attempts.job
 WHERE attempts.ended_at IS NULL AND NOT EXISTS (
    SELECT 1 FROM parked.owners WHERE owners.id = attempts.owner_id AND owners.ended_at IS NULL AND owners.lost_at IS NULL
);


-- name: bodies_of_payloads
SELECT pipeline, job_id, CASE payloads.revision WHEN 0 THEN payload_hash END, codec, key_id, body
  FROM parked.payloads JOIN parked.jobs ON jobs.id = payloads.job WHERE codec NOT IN ('erased', 'omitted');

-- name: bodies_of_answers
SELECT pipeline, job_id, NULL, codec, key_id, body
  FROM parked.answers JOIN parked.jobs ON jobs.id = answers.job WHERE codec NOT IN ('erased', 'omitted');


-- ==== a whole ledger, table by table: see tables.py ====

-- name: columns_of_ledger
one, name, created_at

-- name: rows_of_ledger
SELECT {columns_of_ledger} FROM parked.ledger ORDER BY one;

-- name: fill_ledger
COPY parked.ledger ({columns_of_ledger}) FROM STDIN;

-- name: columns_of_owners
id, token, role, host, boot_id, pid_namespace, pid, process_start, version, beat, started_at, beat_at, ended_at,
lost_at, pipeline, caller, checker, run_began_at

-- name: rows_of_owners
SELECT {columns_of_owners} FROM parked.owners ORDER BY id;

-- name: fill_owners
COPY parked.owners ({columns_of_owners}) FROM STDIN;

-- name: columns_of_replays
id, name, who, filters, trigger, started_at, ended_at, recovered, parked_again, released

-- name: rows_of_replays
SELECT {columns_of_replays} FROM parked.replays ORDER BY id;

-- name: fill_replays
COPY parked.replays ({columns_of_replays}) FROM STDIN;

-- name: columns_of_jobs
id, pipeline, batch, job_id, model, state, came_from, error_class, reason, kind, scope, fingerprint, calls,
calls_elsewhere, strikes, replays, auto_replays, not_before, place, caller, checker, accepted_at, started_at,
parked_at, finished_at, owner_id, replay_id, trace_id, span_id, note, payload_hash, revision, erased_at

-- name: rows_of_jobs
SELECT {columns_of_jobs} FROM parked.jobs ORDER BY id;

-- name: fill_jobs
COPY parked.jobs ({columns_of_jobs}) FROM STDIN;

-- name: columns_of_payloads
job, revision, model, codec, key_id, body, stored_at, note

-- name: rows_of_payloads
SELECT {columns_of_payloads} FROM parked.payloads ORDER BY job, revision;

-- name: fill_payloads
COPY parked.payloads ({columns_of_payloads}) FROM STDIN;

-- name: columns_of_answers
job, attempt, codec, key_id, body, answered_at, handed_out_at, delivered_at, deliveries, deliver_after, delivery_fault

-- name: rows_of_answers
SELECT {columns_of_answers} FROM parked.answers ORDER BY job;

-- name: fill_answers
COPY parked.answers ({columns_of_answers}) FROM STDIN;

-- name: columns_of_attempts
job, number, replay_id, owner_id, model, revision, strike, started_at, ended_at, duration_s, answered, interrupted,
kind, reason, scope, status, rule, fingerprint, quota_id, message, retry_after_s, tokens_in, tokens_out, response_id,
trace_id, span_id, message_key_id

-- name: rows_of_attempts
SELECT {columns_of_attempts} FROM parked.attempts ORDER BY job, number;

-- name: fill_attempts
COPY parked.attempts ({columns_of_attempts}) FROM STDIN;

-- name: columns_of_counters
metric, pipeline, model, a, b, value, first_at, trace_id, span_id, example_value, example_at

-- name: rows_of_counters
-- Over all slots, as select_counters takes them together; always in the same order, so that a sum is always the same.
SELECT metric, pipeline, model, a, b,
       CASE WHEN metric = ANY(%(latest)s::text[]) THEN max(value) ELSE sum(value ORDER BY slot) END, min(first_at),
       (array_agg(trace_id ORDER BY example_at DESC NULLS LAST, slot))[1],
       (array_agg(span_id ORDER BY example_at DESC NULLS LAST, slot))[1],
       (array_agg(example_value ORDER BY example_at DESC NULLS LAST, slot))[1], max(example_at)
  FROM parked.counters GROUP BY metric, pipeline, model, a, b ORDER BY metric, pipeline, model, a, b;

-- name: fill_counters
COPY parked.counters ({columns_of_counters}) FROM STDIN;

-- name: columns_of_gates
model, reason, closed_until, probe_interval_s, pace_per_s, outage_since, prober, probe_began_at,
last_success_began_at, changed_at, pace_learnt_at

-- name: rows_of_gates
SELECT {columns_of_gates} FROM parked.gates ORDER BY model COLLATE "C";

-- name: fill_gates
COPY parked.gates ({columns_of_gates}) FROM STDIN;

-- name: columns_of_pauses
pipeline, model, reason, fault_began_at, since, until, owner_id

-- name: rows_of_pauses
SELECT {columns_of_pauses} FROM parked.pauses ORDER BY pipeline COLLATE "C", model COLLATE "C";

-- name: fill_pauses
COPY parked.pauses ({columns_of_pauses}) FROM STDIN;

-- name: columns_of_leases
task, owner_id, taken_at

-- name: rows_of_leases
SELECT {columns_of_leases} FROM parked.leases ORDER BY task COLLATE "C";

-- name: fill_leases
COPY parked.leases ({columns_of_leases}) FROM STDIN;

-- name: columns_of_marks
name, value, set_at

-- name: rows_of_marks
SELECT {columns_of_marks} FROM parked.marks ORDER BY name COLLATE "C";

-- name: fill_marks
COPY parked.marks ({columns_of_marks}) FROM STDIN;

-- name: anything
-- No row: nothing was ever done with this ledger.
SELECT 1 WHERE EXISTS (SELECT 1 FROM parked.owners) OR EXISTS (SELECT 1 FROM parked.jobs)
    OR EXISTS (SELECT 1 FROM parked.replays) OR EXISTS (SELECT 1 FROM parked.counters)
    OR EXISTS (SELECT 1 FROM parked.marks) OR EXISTS (SELECT 1 FROM parked.leases)
    OR EXISTS (SELECT 1 FROM parked.gates) OR EXISTS (SELECT 1 FROM parked.pauses);

-- name: forget_name
-- Make room for the word of the ledger that is copied here.
DELETE FROM parked.ledger;

-- name: last_ids
-- The highest id that each table ever gave out; the view hides it from a role that may not use the sequence.
SELECT given.name, greatest(
           given.last, (SELECT last_value FROM pg_catalog.pg_sequences WHERE schemaname = 'parked' AND sequencename = given.sequence)
       )
  FROM (
    SELECT 'owners' AS name, 'owner_ids' AS sequence, coalesce(max(id), 0) AS last FROM parked.owners
    UNION ALL SELECT 'replays', 'replay_ids', coalesce(max(id), 0) FROM parked.replays
    UNION ALL SELECT 'jobs', 'job_ids', coalesce(max(id), 0) FROM parked.jobs
  ) AS given;

-- name: go_on_from
-- Give out no id again, up to these, and no place up to the last in line.
SELECT setval('parked.owner_ids', greatest(%(owners)s, 1), %(owners)s > 0),
       setval('parked.replay_ids', greatest(%(replays)s, 1), %(replays)s > 0),
       setval('parked.job_ids', greatest(%(jobs)s, 1), %(jobs)s > 0),
       setval('parked.places', greatest(line.last, 1), line.last > 0)
  FROM (SELECT coalesce(max(place), 0) AS last FROM parked.jobs) AS line;
