-- additive

-- Pending jobs that can be run alike, in order of place: what a claim looks at.
CREATE INDEX jobs_lanes ON parked.jobs (pipeline, caller, checker, model, place, id) WHERE state = 'pending';
