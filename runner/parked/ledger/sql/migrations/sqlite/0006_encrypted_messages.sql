-- additive

-- Which key a message is encrypted with. NULL: it isn't.
ALTER TABLE attempts ADD COLUMN message_key_id TEXT;
