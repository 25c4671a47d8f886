-- When a stop in progress kills the guest, in nanoseconds since the start of the node, which no step
-- of the wall clock moves; NULL without one. Rows of earlier versions have kill_at, by the wall clock.
ALTER TABLE containers ADD COLUMN kill_by INTEGER;
