-- additive

-- The last place is found whoever stands there, so that a job's moves leave this index alone; what is replayed has a line
-- of its own.
CREATE INDEX jobs_places ON jobs (place);
CREATE INDEX jobs_parked_line ON jobs (place) WHERE state = 'parked';
DROP INDEX jobs_line;
