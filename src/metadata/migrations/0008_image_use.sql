-- When an image was last pulled, or when the last disk based on it came or went. Of the images of
-- earlier versions nothing is known: their age counts from the upgrade.
ALTER TABLE images ADD COLUMN used_at INTEGER NOT NULL DEFAULT 0;

UPDATE images SET used_at = CAST(strftime('%s', 'now') AS INTEGER) * 1000000000;
