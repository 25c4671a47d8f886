-- Resources after an update; NULL as long as those of the creation are in force.
ALTER TABLE containers ADD COLUMN resources TEXT;

-- How many processes of the pod's cgroup had been killed for want of memory when the machine was started.
ALTER TABLE containers ADD COLUMN oom_kills INTEGER NOT NULL DEFAULT 0;

-- Facts about this installation and its node.
CREATE TABLE node (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;
