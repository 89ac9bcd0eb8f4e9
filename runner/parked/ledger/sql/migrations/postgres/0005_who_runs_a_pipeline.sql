-- additive

-- Which pipeline's pending jobs an owner takes up until none is left, and with which caller and check; NULL: none (any
-- more).
ALTER TABLE parked.owners ADD COLUMN pipeline TEXT;
ALTER TABLE parked.owners ADD COLUMN caller TEXT;
ALTER TABLE parked.owners ADD COLUMN checker TEXT;
ALTER TABLE parked.owners ADD COLUMN run_began_at DOUBLE PRECISION;
