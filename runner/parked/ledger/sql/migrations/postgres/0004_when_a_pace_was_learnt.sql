-- additive

-- When a refusal last set a gate's pace: a pace that was learnt long ago tells nothing of the quota as it is.
ALTER TABLE parked.gates ADD COLUMN pace_learnt_at DOUBLE PRECISION;
