-- How the pod names the image that is pinned for it: its disk follows this text, not the content that
-- the name has today. Of the pins of earlier versions, and of disks, nothing is known.
ALTER TABLE image_pins ADD COLUMN text TEXT;
