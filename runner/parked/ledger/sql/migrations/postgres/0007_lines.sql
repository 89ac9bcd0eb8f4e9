-- additive

-- Nothing is asked for in this order any more, and a claim that was read by it would go through the lanes of others.
DROP INDEX parked.jobs_line;
