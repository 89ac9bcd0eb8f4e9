-- additive

-- The state goes last. As the first column it looked like a condition that few rows meet, and so this index was taken for
-- whatever was asked of parked jobs: a list of ten read and sorted all of them.
DROP INDEX jobs_causes;
CREATE INDEX jobs_causes ON jobs (fingerprint, error_class, reason, erased_at, parked_at, state) WHERE state = 'parked';

-- A scrape counts those that were lost of late, among all that there ever were.
CREATE INDEX owners_lost ON owners (lost_at) WHERE lost_at IS NOT NULL;
