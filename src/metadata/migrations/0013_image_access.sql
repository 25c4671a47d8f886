-- By which credentials an image came: others ask its server before they use it.
CREATE TABLE image_access (
    digest   TEXT NOT NULL REFERENCES images (digest) ON DELETE CASCADE,
    -- 'anyone', or 64 hex digits: SHA-256 of the key below and of a digest of the credentials.
    identity TEXT NOT NULL,
    PRIMARY KEY (digest, identity)
) STRICT;

-- One row. Without it no identity says which credentials it stands for.
CREATE TABLE image_access_key (
    key BLOB NOT NULL
) STRICT;
INSERT INTO image_access_key (key) VALUES (randomblob(32));
