//! Conversions of backups.
//!
//! Invariant: a UID that comes out of a request is one, the name of a target is one that a configuration can have or the UID of
//! a claim, and a digest is one.
//! Failure: [`Invalid`] names the field.

use nodeapi::v1;
use podspec::VmUid;

use super::manifests::machine_name;
use super::{Invalid, MILLI, uid};
use crate::backup::ClaimTarget;
use crate::config::is_target_name;
use crate::images::Digest;
use crate::node::task::{Backup, DoneBackup, StoredBackup, Work};

/// Longest time for which a guest freezes its file systems, in seconds.
const QUIESCE: u32 = 600;

/// The most increments that are based on one full backup.
const INCREMENTS: u32 = 62;

/// The work of a request to write a backup.
pub(super) fn take(requested: &v1::Backup) -> Result<Work, Invalid> {
    if requested.quiesce_seconds > QUIESCE {
        return Err(Invalid {
            field: "backup.quiesce_seconds",
            reason: "at most 600 are allowed",
        });
    }
    let most_increments = match requested.most_increments {
        0 => INCREMENTS,
        some => some.min(INCREMENTS),
    };
    Ok(Work::Backup(Backup {
        uid: uid("backup.uid", &requested.uid)?,
        target: target("backup.target", &requested.target)?,
        name: machine_name("backup.vm_name", &requested.vm_name)?,
        full: requested.full,
        quiesce: requested.quiesce_seconds,
        most_increments,
    }))
}

/// The work of a request to verify a backup.
pub(super) fn verify(requested: &v1::VerifyBackup) -> Result<Work, Invalid> {
    let stored = StoredBackup {
        uid: uid("verify_backup.uid", &requested.uid)?,
        target: target("verify_backup.target", &requested.target)?,
        name: machine_name("verify_backup.vm_name", &requested.vm_name)?,
        sha256: digest("verify_backup.sha256", &requested.sha256)?,
    };
    Ok(Work::VerifyBackup { stored })
}

/// The work of a request to remove a backup.
pub(super) fn delete(requested: &v1::DeleteBackup) -> Result<Work, Invalid> {
    let stored = StoredBackup {
        uid: uid("delete_backup.uid", &requested.uid)?,
        target: target("delete_backup.target", &requested.target)?,
        name: machine_name("delete_backup.vm_name", &requested.vm_name)?,
        sha256: None,
    };
    Ok(Work::DeleteBackup { stored })
}

/// The work of a request to make the disk of `vm` from a backup.
pub(super) fn restore(vm: VmUid, requested: &v1::RestoreBackup) -> Result<Work, Invalid> {
    let field = "restore_backup.source_vm_uid";
    let source = uid(field, &requested.source_vm_uid)?;
    if source == vm {
        let reason = "the backup of another machine is needed";
        return Err(Invalid { field, reason });
    }
    if i64::try_from(requested.size_bytes).is_err() {
        return Err(Invalid {
            field: "restore_backup.size_bytes",
            reason: "a size up to 8 EiB is allowed",
        });
    }
    let stored = StoredBackup {
        uid: uid("restore_backup.uid", &requested.uid)?,
        target: target("restore_backup.target", &requested.target)?,
        name: machine_name("restore_backup.vm_name", &requested.vm_name)?,
        sha256: digest("restore_backup.sha256", &requested.sha256)?,
    };
    Ok(Work::RestoreBackup {
        stored,
        source,
        size: requested.size_bytes,
    })
}

/// The backup of a request to send what it has.
pub(super) fn exported(requested: &v1::ExportBackupRequest) -> Result<StoredBackup, Invalid> {
    Ok(StoredBackup {
        uid: uid("backup_uid", &requested.backup_uid)?,
        target: target("target", &requested.target)?,
        name: machine_name("vm_name", &requested.vm_name)?,
        sha256: digest("sha256", &requested.sha256)?,
    })
}

/// A backup that was written or verified.
pub(super) fn done(backup: &DoneBackup) -> v1::DiskBackup {
    v1::DiskBackup {
        uid: backup.uid.to_string(),
        full: backup.parent.is_none(),
        full_reason: backup.full_reason.clone(),
        parent_uid: backup
            .parent
            .map(|parent| parent.to_string())
            .unwrap_or_default(),
        file_bytes: backup.stored_bytes,
        read_bytes: backup.read_bytes,
        virtual_bytes: backup.virtual_bytes,
        sha256: backup.sha256.clone(),
        quiesced: backup.quiesced,
        running: backup.running,
        created_ms: backup.created_at / MILLI,
    }
}

fn target(field: &'static str, name: &str) -> Result<String, Invalid> {
    if !is_target_name(name) && name.parse::<ClaimTarget>().is_err() {
        let reason = "the name of a target is needed: lower-case letters, digits and hyphens, at most 63; or claim: and the \
                      UID of a claim";
        return Err(Invalid { field, reason });
    }
    Ok(name.to_owned())
}

fn digest(field: &'static str, text: &str) -> Result<Option<String>, Invalid> {
    if text.is_empty() {
        return Ok(None);
    }
    if Digest::from_hex(text).is_err() {
        let reason = "64 hexadecimal digits are needed";
        return Err(Invalid { field, reason });
    }
    Ok(Some(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b01";
    const OWN: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b02";

    fn requested() -> v1::RestoreBackup {
        v1::RestoreBackup {
            uid: UID.to_owned(),
            target: "nfs-1".to_owned(),
            source_vm_uid: UID.to_owned(),
            size_bytes: 7,
            vm_name: "ns/vm".to_owned(),
            sha256: "0a".repeat(32),
        }
    }

    #[test]
    fn a_backup_has_an_uid_and_a_target_by_its_name() {
        let read = |target: &str, quiesce, most| {
            take(&v1::Backup {
                uid: UID.to_owned(),
                target: target.to_owned(),
                vm_name: "ns/vm".to_owned(),
                full: false,
                quiesce_seconds: quiesce,
                most_increments: most,
            })
        };
        let most = |asked| match read("nfs", 600, asked).unwrap() {
            Work::Backup(backup) => backup.most_increments,
            other => panic!("{other:?}"),
        };
        assert_eq!([most(0), most(5), most(63)], [62, 5, 62]);
        assert_eq!(
            read("nfs", 601, 0).unwrap_err().field,
            "backup.quiesce_seconds"
        );
        read(&format!("claim:{UID}"), 0, 0).unwrap();
        let odd_claim = format!("claim:{}", UID.to_uppercase());
        for odd in [
            "",
            "..",
            "a/b",
            "NFS",
            &"a".repeat(64),
            "claim:",
            "claim:../x",
            &odd_claim,
        ] {
            assert_eq!(read(odd, 0, 0).unwrap_err().field, "backup.target", "{odd}");
        }
    }

    #[test]
    fn a_restore_is_from_another_machine() {
        let own: VmUid = OWN.parse().unwrap();
        let work = restore(own, &requested()).unwrap();
        let Work::RestoreBackup { stored, size, .. } = work else {
            panic!("{work:?}");
        };
        assert_eq!((stored.digest().is_some(), size), (true, 7));
        let refused = |change: fn(&mut v1::RestoreBackup)| {
            let mut odd = requested();
            change(&mut odd);
            restore(own, &odd).unwrap_err().field
        };
        assert_eq!(
            refused(|r| r.source_vm_uid = OWN.to_owned()),
            "restore_backup.source_vm_uid"
        );
        assert_eq!(
            refused(|r| r.sha256 = "0A".repeat(32)),
            "restore_backup.sha256"
        );
        assert_eq!(
            refused(|r| r.vm_name = "vm".to_owned()),
            "restore_backup.vm_name"
        );
        assert_eq!(
            refused(|r| r.size_bytes = u64::MAX),
            "restore_backup.size_bytes"
        );
    }
}
