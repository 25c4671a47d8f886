-- Disks of virtual machines, which outlive pods; a row is JSON.
CREATE TABLE vm_disks (
    -- UID of the VirtualMachine object.
    key TEXT PRIMARY KEY,
    row TEXT NOT NULL
) STRICT;

-- Tasks of the node API; a row is JSON.
CREATE TABLE node_tasks (
    -- UID of the VirtualMachineTask object.
    key TEXT PRIMARY KEY,
    row TEXT NOT NULL
) STRICT;
