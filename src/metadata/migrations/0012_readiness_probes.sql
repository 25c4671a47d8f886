-- The readiness probe that the node makes of the machine, as JSON; NULL without one.
ALTER TABLE containers ADD COLUMN probe TEXT;
