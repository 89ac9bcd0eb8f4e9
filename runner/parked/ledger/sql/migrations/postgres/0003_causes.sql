-- additive

-- Parked jobs by what they failed of: all that a summary asks of each of them, so that the rows themselves aren't read.
CREATE INDEX jobs_causes ON parked.jobs (fingerprint, error_class, reason, erased_at, parked_at, id)
    WHERE state = 'parked';
DROP INDEX parked.jobs_parked_cause;
