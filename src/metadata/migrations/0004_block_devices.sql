-- Block devices that containers have as disks; a row is JSON.
CREATE TABLE block_devices (
    -- Number of the device, major-minor.
    key TEXT PRIMARY KEY,
    row TEXT NOT NULL
) STRICT;
