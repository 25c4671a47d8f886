-- Whether a client has paused the guest: only a request lets it run again.
ALTER TABLE containers ADD COLUMN held INTEGER NOT NULL DEFAULT 0;
