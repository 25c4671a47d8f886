-- Times are nanoseconds since the epoch; 0 is "has not happened".

CREATE TABLE sandboxes (
    id         TEXT PRIMARY KEY,
    -- namespace/name/uid/attempt: the same pod attempt exists at most once.
    identity   TEXT NOT NULL UNIQUE,
    phase      TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    config     TEXT NOT NULL,
    network    TEXT
) STRICT;

CREATE TABLE containers (
    id          TEXT PRIMARY KEY,
    sandbox     TEXT NOT NULL REFERENCES sandboxes (id),
    phase       TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    started_at  INTEGER NOT NULL DEFAULT 0,
    finished_at INTEGER NOT NULL DEFAULT 0,
    -- When a stop in progress kills the machine.
    kill_at     INTEGER NOT NULL DEFAULT 0,
    exit        TEXT,
    spec        TEXT NOT NULL
) STRICT;

CREATE INDEX containers_by_sandbox ON containers (sandbox);

CREATE TABLE images (
    -- sha256:<64 hex digits> of the file.
    digest       TEXT PRIMARY KEY,
    size         INTEGER NOT NULL,
    virtual_size INTEGER NOT NULL,
    format       TEXT NOT NULL,
    pulled_at    INTEGER NOT NULL,
    -- 1: removed by a client, and kept only as long as it is pinned.
    removed      INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE image_names (
    -- name:tag or name@digest.
    name   TEXT PRIMARY KEY,
    digest TEXT NOT NULL REFERENCES images (digest) ON DELETE CASCADE
) STRICT;

-- What a server called the version of a file that we have, so that an unchanged file is not sent again.
CREATE TABLE image_sources (
    -- SHA-256 of the URL, which may hold secrets.
    source   TEXT PRIMARY KEY,
    digest   TEXT NOT NULL REFERENCES images (digest) ON DELETE CASCADE,
    etag     TEXT,
    modified TEXT
) STRICT;

-- Files that must stay although their image may be gone: disks of sandboxes stand on them.
CREATE TABLE image_pins (
    owner  TEXT PRIMARY KEY,
    digest TEXT NOT NULL
) STRICT;
