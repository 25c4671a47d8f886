-- The user in the configuration of an image from a registry, as it is written there.
ALTER TABLE images ADD COLUMN config_user TEXT NOT NULL DEFAULT '';

-- The digest of what was downloaded, or of the manifest of a registry, where the image is a file in it.
ALTER TABLE image_sources ADD COLUMN content TEXT;
