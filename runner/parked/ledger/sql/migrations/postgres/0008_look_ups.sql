-- additive

-- By state first. Where statistics are old or absent, a pipeline that they don't know was taken for as good as a key, and
-- jobs that were asked for by their ids were sought among all of their pipeline.
CREATE INDEX jobs_of_state ON parked.jobs (state, pipeline);
DROP INDEX parked.jobs_states;

-- In the order in which they are delivered, so that a page of them is read and not all that wait.
CREATE INDEX answers_due ON parked.answers (deliver_after, job) WHERE delivered_at IS NULL AND deliver_after IS NOT NULL;
DROP INDEX parked.answers_undelivered;

-- A scrape counts those that were lost of late, among all that there ever were.
CREATE INDEX owners_lost ON parked.owners (lost_at) WHERE lost_at IS NOT NULL;
