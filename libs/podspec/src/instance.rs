//! The virtual machine of the cluster that a pod runs, and the options of its start.
//!
//! Invariant: a [`VmUid`] is a UUID in its one canonical spelling, fit for file names; an
//! [`Instance`] requests nothing that contradicts itself.
//! Failure: an [`AnnotationError`] that names the annotation. Annotations are text from the user
//! who created the pod.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::annotations::{AnnotationError, Annotations, Key};

/// UID of a VirtualMachine object: 32 hexadecimal digits, lower case, with hyphens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VmUid(Uuid);

/// What a pod is there for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// To be a machine.
    #[default]
    Machine,
    /// To reserve a place and bring an image; nothing ever boots.
    Provision,
    /// To have a claim mounted, in which the node keeps backups; nothing ever boots.
    BackupTarget,
}

/// The part of a pod that ties it to a VirtualMachine object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Instance {
    /// Boots from the disk of this machine, which outlives the pod.
    pub vm: Option<VmUid>,
    /// What the pod is there for.
    pub role: Role,
    /// Its first start resumes the memory that was saved beside the disk.
    pub restore: bool,
    /// The guest starts paused and runs when it is resumed.
    pub start_paused: bool,
    /// The UUID that the hypervisor knows the machine by.
    pub instance_uuid: Option<Uuid>,
    /// The UUID that the guest reads from its firmware.
    pub bios_uuid: Option<Uuid>,
    /// Another one when the root disk on a volume has become an earlier one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_generation: Option<Uuid>,
    /// The claim that the pod has mounted for backups: every pod of that role has one, and no other pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_claim: Option<Uuid>,
}

impl VmUid {
    /// The UUID.
    pub const fn uuid(self) -> Uuid {
        self.0
    }
}

impl Instance {
    /// Reads the annotations; a label may give the role in place of the annotation.
    pub fn from_pod(
        annotations: &BTreeMap<String, String>,
        labels: &BTreeMap<String, String>,
    ) -> Result<Self, AnnotationError> {
        let given = Annotations::new(annotations);
        let labels = Annotations::new(labels);
        let role = match given.get(Key::Role)? {
            Some(role @ (Role::Provision | Role::BackupTarget)) => role,
            Some(Role::Machine) | None => labels.get(Key::Role)?.unwrap_or_default(),
        };
        let instance = Self {
            vm: given.get(Key::VmDisk)?,
            role,
            restore: given.get(Key::Restore)?.unwrap_or(false),
            start_paused: given.get(Key::StartPaused)?.unwrap_or(false),
            instance_uuid: given.get::<StrictUuid>(Key::InstanceUuid)?.map(|u| u.0),
            bios_uuid: given.get::<StrictUuid>(Key::BiosUuid)?.map(|u| u.0),
            disk_generation: given.get::<StrictUuid>(Key::DiskGeneration)?.map(|u| u.0),
            backup_claim: given
                .get::<StrictUuid>(Key::BackupTargetClaim)?
                .map(|u| u.0),
        };
        let is_target = instance.role == Role::BackupTarget;
        if is_target != instance.backup_claim.is_some() {
            let role = Key::Role.names().0;
            let claim = Key::BackupTargetClaim.names().0;
            let reason = format!("{role}: backup-target and {claim} are given together");
            let odd = if is_target {
                Key::Role
            } else {
                Key::BackupTargetClaim
            };
            return Err(given.refuse(odd, reason));
        }
        if instance.vm.is_some() && instance.disk_generation.is_some() {
            let reason = format!(
                "it has a meaning only without {}: such a disk has a VM generation ID on record",
                Key::VmDisk.names().0
            );
            return Err(given.refuse(Key::DiskGeneration, reason));
        }
        if instance.role == Role::Machine && instance.vm.is_none() {
            let needs_disk = [
                (Key::Restore, instance.restore),
                (Key::InstanceUuid, instance.instance_uuid.is_some()),
            ];
            if let Some((key, _)) = needs_disk.into_iter().find(|(_, requested)| *requested) {
                let reason = format!("it has a meaning only with {}", Key::VmDisk.names().0);
                return Err(given.refuse(key, reason));
            }
        }
        Ok(instance)
    }

    /// The UUID of the domain: the machine's own, the same in each of its pods. `None` for a pod
    /// without such a disk.
    pub fn domain(&self) -> Option<Uuid> {
        let vm = self.vm?;
        Some(self.instance_uuid.unwrap_or(vm.uuid()))
    }
}

impl FromStr for VmUid {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        text.parse().map(|StrictUuid(uuid)| Self(uuid))
    }
}

impl TryFrom<String> for VmUid {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        text.parse()
    }
}

impl From<VmUid> for String {
    fn from(uid: VmUid) -> Self {
        uid.to_string()
    }
}

impl fmt::Display for VmUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl FromStr for Role {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "provision" => Ok(Self::Provision),
            "instance" => Ok(Self::Machine),
            "backup-target" => Ok(Self::BackupTarget),
            _ => Err("\"provision\", \"instance\" and \"backup-target\" are allowed"),
        }
    }
}

/// A UUID as Kubernetes writes it, and in no other spelling: it names things.
struct StrictUuid(Uuid);

impl FromStr for StrictUuid {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let uuid = Uuid::try_parse(text).ok().filter(|uuid| {
            let mut buffer = Uuid::encode_buffer();
            !uuid.is_nil() && *uuid.hyphenated().encode_lower(&mut buffer) == *text
        });
        uuid.map(Self)
            .ok_or("a UUID is needed: 8-4-4-4-12 hexadecimal digits, lower case, not all zero")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";
    const OTHER: &str = "7b0e4a7e-2a61-4d0e-8a53-0c7a4d1b2e3f";

    fn read(pairs: &[(&str, &str)]) -> Result<Instance, AnnotationError> {
        let map = pairs.iter().map(|(k, v)| ((*k).into(), (*v).into()));
        Instance::from_pod(&map.collect(), &BTreeMap::new())
    }

    #[test]
    fn a_pod_of_a_virtual_machine_is_recognized() {
        let pod = read(&[
            ("vmlet.dev/vm-disk", UID),
            ("vmlet.dev/restore", "true"),
            ("vmlet.dev/start-paused", "true"),
            ("vmlet.dev/instance-uuid", OTHER),
            ("vmlet.dev/bios-uuid", UID),
        ]);
        let pod = pod.unwrap();
        assert_eq!(pod.vm.unwrap().to_string(), UID);
        assert_eq!(String::from(pod.vm.unwrap()), UID);
        assert!(pod.restore && pod.start_paused);
        assert_eq!(pod.domain().unwrap().to_string(), OTHER);
        assert_eq!(pod.bios_uuid.unwrap().to_string(), UID);
        let generation = ("vmlet.dev/disk-generation", OTHER);
        let of_claim = read(&[("vmlet.dev/bios-uuid", UID), generation]).unwrap();
        assert_eq!(of_claim.disk_generation.unwrap().to_string(), OTHER);
        let refused = read(&[("vmlet.dev/vm-disk", UID), generation]).unwrap_err();
        assert!(refused.to_string().contains("only without"), "{refused}");
        let plain = read(&[("vmlet.dev/vm-disk", UID)]).unwrap();
        assert_eq!(plain.domain().unwrap().to_string(), UID);
        assert_eq!(read(&[]).unwrap(), Instance::default());
    }

    #[test]
    fn an_odd_spelling_of_a_uid_is_refused() {
        let upper = UID.to_uppercase();
        let bare = UID.replace('-', "");
        let braces = format!("{{{UID}}}");
        let urn = format!("urn:uuid:{UID}");
        let nil = Uuid::nil().to_string();
        let long = format!("{UID}0");
        for odd in [
            "", "..", "../x", &upper, &bare, &braces, &urn, &nil, &long, " ",
        ] {
            let error = read(&[("vmlet.dev/vm-disk", odd)]).unwrap_err();
            assert_eq!(error.name, "vmlet.dev/vm-disk", "{odd}");
            assert!(read(&[("vmlet.dev/bios-uuid", odd)]).is_err(), "{odd}");
            assert!(
                read(&[("vmlet.dev/disk-generation", odd)]).is_err(),
                "{odd}"
            );
        }
    }

    #[test]
    fn what_needs_a_disk_is_refused_without_one() {
        for (name, value) in [
            ("vmlet.dev/restore", "true"),
            ("vmlet.dev/instance-uuid", UID),
        ] {
            assert_eq!(read(&[(name, value)]).unwrap_err().name, name);
            let pod = read(&[(name, value), ("vmlet.dev/role", "provision")]);
            assert_eq!(pod.unwrap().role, Role::Provision);
        }
        assert!(!read(&[("vmlet.dev/restore", "false")]).unwrap().restore);
        assert!(read(&[("vmlet.dev/role", "boot")]).is_err());
    }

    #[test]
    fn a_pod_with_a_target_of_backups_has_role_and_claim_together() {
        let role = ("vmlet.dev/role", "backup-target");
        let claim = ("vmlet.dev/backup-target-claim", UID);
        let pod = read(&[role, claim]).unwrap();
        assert_eq!(pod.role, Role::BackupTarget);
        assert_eq!(pod.backup_claim.unwrap().to_string(), UID);
        assert_eq!(read(&[role]).unwrap_err().name, role.0);
        for other in [None, Some("instance"), Some("provision")] {
            let other = other.map(|role| ("vmlet.dev/role", role));
            let given: Vec<_> = other.into_iter().chain([claim]).collect();
            assert_eq!(read(&given).unwrap_err().name, claim.0, "{other:?}");
        }
        assert!(read(&[role, (claim.0, "../x")]).is_err());
    }

    #[test]
    fn a_label_alone_keeps_a_pod_from_booting() {
        let label = BTreeMap::from([("vmlet.dev/role".to_owned(), "provision".to_owned())]);
        for annotations in [
            BTreeMap::new(),
            BTreeMap::from([("vmlet.dev/role".to_owned(), "instance".to_owned())]),
        ] {
            let pod = Instance::from_pod(&annotations, &label).unwrap();
            assert_eq!(pod.role, Role::Provision);
        }
    }
}
