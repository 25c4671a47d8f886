-- Virtual sizes of root disks in files, which the budget of the node counts; a row is JSON.
CREATE TABLE root_disk_sizes (
    -- Directory of the disk below the state directory: pods/ID or disks/UID.
    key TEXT PRIMARY KEY,
    row TEXT NOT NULL
) STRICT;

-- Those of virtual machines are known. The disks of other pods are measured at the next start.
INSERT INTO root_disk_sizes (key, row)
SELECT 'disks/' || key,
       json_object('place', 'disks/' || key, 'virtual_bytes', json_extract(row, '$.virtual_bytes'))
FROM vm_disks
WHERE json_extract(row, '$.virtual_bytes') > 0;
