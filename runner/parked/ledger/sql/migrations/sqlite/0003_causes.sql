-- additive

-- Parked jobs by what they failed of: all that a summary asks of each of them, so that the rows themselves aren't read.
-- The state stands in it too, for SQLite doesn't take its own condition for a reason to leave the rows alone.
CREATE INDEX jobs_causes ON jobs (state, fingerprint, error_class, reason, erased_at, parked_at) WHERE state = 'parked';
DROP INDEX jobs_parked_cause;
