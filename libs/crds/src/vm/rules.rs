//! Validation rules for machines in CEL.
//!
//! Invariant: "on" and "off" here are desired states, in any of the three fields.
//! Failure: none; `tests/e2e/tests/api/rules.rs` breaks each of them.

/// No node makes the root disk yet, and no disk or claim is on record. The end of a rule: what a machine
/// is made of can be corrected until then.
macro_rules! nothing_made {
    () => {
        "!has(self.status) || (!has(self.status.nodeName) && (!has(self.status.conditions) || \
         !self.status.conditions.exists(c, c.type == 'VirtualMachineCreated' && c.status == 'True')))"
    };
}

/// Names become labels and host names.
pub(super) const NAME: &str = "size(self.metadata.name) <= 63";

pub(super) const ONE_POWER_FIELD: &str = "(has(self.powerState) ? 1 : 0) + (has(self.runStrategy) ? 1 : 0) + \
    (has(self.running) ? 1 : 0) == 1";

pub(super) const NOT_BORN_SUSPENDED: &str =
    "oldSelf.hasValue() || !has(self.powerState) || self.powerState != 'Suspended'";

pub(super) const SUSPENDED_FROM_ON: &str = "!has(self.powerState) || self.powerState != 'Suspended' || \
    (has(oldSelf.powerState) ? oldSelf.powerState != 'PoweredOff' : \
    has(oldSelf.runStrategy) ? oldSelf.runStrategy != 'Halted' : !has(oldSelf.running) || oldSelf.running)";

/// One that is Suspended already, by an older version's rules, can still be edited.
pub(super) const SUSPENDED_BESIDE_A_DISK: &str = "!has(self.powerState) || self.powerState != 'Suspended' || \
    (has(oldSelf.powerState) && oldSelf.powerState == 'Suspended') || \
    (!has(self.storageClass) && (!has(self.volumes) || !self.volumes.exists(v, \
    has(v.persistentVolumeClaim) && v.persistentVolumeClaim.root)))";

pub(super) const SUSPENDED_WITHOUT_SHARES: &str = "!has(self.powerState) || self.powerState != 'Suspended' || \
    (has(oldSelf.powerState) && oldSelf.powerState == 'Suspended') || \
    !has(self.volumes) || !self.volumes.exists(v, has(v.persistentVolumeClaim) && \
    has(v.persistentVolumeClaim.mountPath)) || (has(self.template) && has(self.template.metadata) && \
    has(self.template.metadata.annotations) && 'vmlet.dev/shares' in self.template.metadata.annotations && \
    self.template.metadata.annotations['vmlet.dev/shares'] == 'off')";

/// An image may be missing only where something else is the root disk.
pub(super) const SOME_ROOT: &str = "has(self.image) || has(self.imageName) || has(self.source) || (has(self.volumes) && \
    self.volumes.exists(v, has(v.persistentVolumeClaim) && v.persistentVolumeClaim.root))";

pub(super) const ONE_SOURCE: &str = "(has(self.snapshot) ? 1 : 0) + (has(self.virtualMachine) ? 1 : 0) + \
    (has(self.backup) ? 1 : 0) == 1";

/// A clone is a disk of the node of its source.
pub(super) const SOURCE_WITHOUT_CLAIM: &str = "!has(self.source) || (!has(self.storageClass) && (!has(self.volumes) || \
    !self.volumes.exists(v, has(v.persistentVolumeClaim) && v.persistentVolumeClaim.root)))";

pub(super) const ONE_ROOT: &str = "!has(self.volumes) || \
    self.volumes.filter(v, has(v.persistentVolumeClaim) && v.persistentVolumeClaim.root).size() <= 1";

pub(super) const TEMPLATES_USED: &str = "!has(self.dataVolumeTemplates) || \
    self.dataVolumeTemplates.all(t, has(self.volumes) && self.volumes.exists(v, \
    has(v.persistentVolumeClaim) && v.persistentVolumeClaim.claimName == t.name))";

/// One that no node had is not on record, so that it can be corrected.
pub(super) const MACHINE_TYPE_NOT_LOWERED: &str = "!has(oldSelf.spec.minMachineType) || \
    (has(self.spec.minMachineType) && \
    int(self.spec.minMachineType.split('-')[2].split('.')[0]) * 1000 + int(self.spec.minMachineType.split('.')[1]) >= \
    int(oldSelf.spec.minMachineType.split('-')[2].split('.')[0]) * 1000 + int(oldSelf.spec.minMachineType.split('.')[1])) || \
    !has(self.status) || !has(self.status.machineType) || \
    !self.status.machineType.matches('^pc-q35-[0-9]{1,4}[.][0-9]{1,3}$') || \
    int(self.status.machineType.split('-')[2].split('.')[0]) * 1000 + int(self.status.machineType.split('.')[1]) < \
    int(oldSelf.spec.minMachineType.split('-')[2].split('.')[0]) * 1000 + int(oldSelf.spec.minMachineType.split('.')[1])";

/// The desired state before or after the edit, or the observed state: any of them is enough.
pub(super) const MACHINE_TYPE_WHILE_OFF: &str = "(has(self.spec.minMachineType) == has(oldSelf.spec.minMachineType) && \
    (!has(self.spec.minMachineType) || self.spec.minMachineType == oldSelf.spec.minMachineType)) || \
    [self.spec, oldSelf.spec].exists(s, (has(s.powerState) && s.powerState != 'PoweredOn') || \
    (has(s.runStrategy) && s.runStrategy == 'Halted') || (has(s.running) && !s.running)) || \
    (has(self.status) && has(self.status.powerState) && self.status.powerState == 'PoweredOff')";

/// The controller removes the name at the end.
pub(super) const REVERT_UNDER_WAY: &str = "(has(self.spec.currentSnapshotName) == has(oldSelf.spec.currentSnapshotName) && \
    (!has(self.spec.currentSnapshotName) || self.spec.currentSnapshotName == oldSelf.spec.currentSnapshotName)) || \
    !has(self.status) || !has(self.status.conditions) || !self.status.conditions.exists(c, c.type == 'VirtualMachineSnapshotRevertSucceeded' && \
    c.reason == 'VirtualMachineSnapshotRevertInProgress') || \
    (has(self.status.snapshotRevert) && self.status.snapshotRevert.phase == 'Restoring')";

/// A disk is never made smaller.
pub(super) const BOOT_DISK_GROWS: &str = concat!(
    "!has(oldSelf.spec.bootDiskCapacity) || (has(self.spec.bootDiskCapacity) && \
    quantity(string(self.spec.bootDiskCapacity)).compareTo(quantity(string(oldSelf.spec.bootDiskCapacity))) >= 0) || ",
    nothing_made!()
);

/// The guest is what its first boot made of it.
pub(super) const BOOTSTRAP_TYPE: &str = concat!(
    "!has(oldSelf.spec.bootstrap) || \
    ((!has(oldSelf.spec.bootstrap.cloudInit) || (has(self.spec.bootstrap) && has(self.spec.bootstrap.cloudInit))) && \
    (!has(oldSelf.spec.bootstrap.sysprep) || (has(self.spec.bootstrap) && has(self.spec.bootstrap.sysprep)))) || ",
    nothing_made!()
);

pub(super) const AFFINITY_FIXED: &str = concat!(
    "(has(self.spec.affinity) == has(oldSelf.spec.affinity) && \
    (!has(self.spec.affinity) || self.spec.affinity == oldSelf.spec.affinity)) || ",
    nothing_made!()
);

pub(super) const STORAGE_CLASS_FIXED: &str = concat!(
    "(has(self.spec.storageClass) == has(oldSelf.spec.storageClass) && \
    (!has(self.spec.storageClass) || self.spec.storageClass == oldSelf.spec.storageClass)) || ",
    nothing_made!()
);

pub(super) const BIOS_UUID_FIXED: &str = concat!(
    "(has(self.spec.biosUUID) == has(oldSelf.spec.biosUUID) && \
    (!has(self.spec.biosUUID) || self.spec.biosUUID == oldSelf.spec.biosUUID)) || ",
    nothing_made!()
);

pub(super) const INSTANCE_UUID_FIXED: &str = concat!(
    "(has(self.spec.instanceUUID) == has(oldSelf.spec.instanceUUID) && \
    (!has(self.spec.instanceUUID) || self.spec.instanceUUID == oldSelf.spec.instanceUUID)) || ",
    nothing_made!()
);

/// A time that has not come can be withdrawn, or become an earlier one; one before the last restart
/// would have no effect.
pub(super) const RESTART_LATER: &str = "!has(self.spec.nextRestartTime) || \
    (has(oldSelf.spec.nextRestartTime) && self.spec.nextRestartTime == oldSelf.spec.nextRestartTime) || \
    !has(self.status) || !has(self.status.lastRestartTime) || \
    timestamp(self.spec.nextRestartTime) > timestamp(self.status.lastRestartTime)";

pub(super) const IMAGE_FIXED: &str = concat!(
    "(has(self.spec.image) == has(oldSelf.spec.image) && \
    (!has(self.spec.image) || self.spec.image == oldSelf.spec.image) && \
    has(self.spec.imageName) == has(oldSelf.spec.imageName) && \
    (!has(self.spec.imageName) || self.spec.imageName == oldSelf.spec.imageName)) || ",
    nothing_made!()
);

// Times are equal to none in an optional old value, which has text in their place.
pub(super) const RESTART_WHILE_ON: &str = "!has(self.nextRestartTime) || \
    (has(oldSelf.nextRestartTime) && oldSelf.nextRestartTime == self.nextRestartTime) || \
    (has(self.powerState) ? self.powerState == 'PoweredOn' : \
    has(self.runStrategy) ? self.runStrategy != 'Halted' : has(self.running) && self.running)";

/// What the controller writes on pods, and what an administrator may.
pub(super) const NOT_OURS: &str = "self.all(k, !k.matches('^(vmlet[.]dev/(vm-uid|role|vm-generation|vm-revision|guest-facts|vm-disk|\
    instance-uuid|bios-uuid|restore|start-paused)|([^/]*[.])?[^/]+[.]protected(/.*)?)$'))";
