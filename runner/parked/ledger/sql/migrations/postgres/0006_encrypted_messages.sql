-- additive

-- Which key a message is encrypted with. NULL: it isn't.
ALTER TABLE parked.attempts ADD COLUMN message_key_id text;
