//! Leases as agents of other versions wrote them: `tests/fixtures/state` has one of each.
//!
//! Invariant: [`facts`] is what the writer has published, and what is to be read.
//! Failure: a fact of an earlier agent that is read otherwise.

use std::path::{Path, PathBuf};

use super::*;

/// The directory for a fixture; without it, what is written goes with the test.
const TARGET: &str = "VMLET_STATE";

fn facts() -> NodeFacts {
    NodeFacts {
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        boot_id: "0a1b2c3d-0000-4000-8000-000000000001".to_owned(),
        features: Vec::new(),
        daemon: daemon_facts(InfoResponse {
            version: "0.1.0".to_owned(),
            installation_id: "0a1b2c3d-0000-4000-8000-000000000002".to_owned(),
            accelerator: "kvm".to_owned(),
            libvirt_version: "9.0.0".to_owned(),
            qemu_version: "7.2.0".to_owned(),
            disk_capacity_bytes: 1 << 40,
            disk_available_bytes: 1 << 39,
            bound_machines: 1,
            task_kinds: vec!["provision".to_owned(), "delete_disk".to_owned()],
            machine_types: vec!["pc-q35-7.2".to_owned()],
            ..InfoResponse::default()
        }),
        proxy: None,
        machines: 3,
        disks: None,
        unreadable_disks: None,
    }
}

#[test]
fn probes_are_announced_only_where_the_daemon_makes_them() {
    let daemon = |kinds: &[&str]| {
        daemon_facts(InfoResponse {
            task_kinds: kinds.iter().map(ToString::to_string).collect(),
            ..InfoResponse::default()
        })
    };
    assert_eq!(features(&daemon(&["provision"])), Vec::<String>::new());
    let both = features(&daemon(&["provision", "set_probe"]));
    assert_eq!(both, [names::NODE_PROBES]);
    let both = features(&daemon(&["promote", "set_probe"]));
    assert_eq!(both, [names::NODE_PROBES, names::DISK_PROMOTION]);
    let both = features(&daemon(&["clone_disk"]));
    assert_eq!(both, [names::DISK_CLONES]);
    let both = features(&daemon(&["backup", "restore_backup"]));
    assert_eq!(both, [names::DISK_BACKUPS]);
}

#[test]
fn claims_for_backups_are_announced_only_where_the_daemon_has_them() {
    let daemon = |kinds: &[&str]| {
        daemon_facts(InfoResponse {
            task_kinds: kinds.iter().map(ToString::to_string).collect(),
            features: vec![names::BACKUP_CLAIMS.to_owned()],
            ..InfoResponse::default()
        })
    };
    assert_eq!(features(&daemon(&[])), Vec::<String>::new());
    let both = [names::DISK_BACKUPS, names::BACKUP_CLAIMS];
    assert_eq!(features(&daemon(&["backup"])), both);
}

#[test]
fn kinds_of_a_later_daemon_that_the_agent_does_not_know_are_not_announced() {
    let facts = daemon_facts(InfoResponse {
        task_kinds: vec!["clone_disk".to_owned(), "fold_disk".to_owned()],
        ..InfoResponse::default()
    });
    assert_eq!(facts.task_kinds, ["CloneDisk"]);
}

#[test]
fn promotion_of_running_machines_is_announced_only_where_the_daemon_has_it() {
    let daemon = |features: &[&str]| {
        daemon_facts(InfoResponse {
            task_kinds: vec!["promote".to_owned()],
            features: features.iter().map(ToString::to_string).collect(),
            ..InfoResponse::default()
        })
    };
    assert_eq!(features(&daemon(&[])), [names::DISK_PROMOTION]);
    let both = [names::DISK_PROMOTION, names::ONLINE_DISK_PROMOTION];
    assert_eq!(features(&daemon(&[names::DISK_PULLS])), both);
}

#[test]
fn memory_in_snapshots_is_announced_only_where_the_daemon_has_it() {
    let daemon = |kinds: &[&str]| {
        daemon_facts(InfoResponse {
            task_kinds: kinds.iter().map(ToString::to_string).collect(),
            features: vec![names::SNAPSHOT_MEMORY.to_owned()],
            ..InfoResponse::default()
        })
    };
    assert_eq!(features(&daemon(&["snapshot"])), Vec::<String>::new());
    let both = features(&daemon(&["snapshot", "revert"]));
    assert_eq!(both, [names::MEMORY_SNAPSHOTS]);
}

#[test]
fn updates_of_images_are_announced_only_where_the_daemon_reports_digests() {
    let daemon = |features: &[&str]| {
        daemon_facts(InfoResponse {
            task_kinds: vec!["inspect_image".to_owned()],
            features: features.iter().map(ToString::to_string).collect(),
            ..InfoResponse::default()
        })
    };
    assert_eq!(features(&daemon(&[])), Vec::<String>::new());
    let both = features(&daemon(&[names::IMAGE_DIGESTS]));
    assert_eq!(both, [names::IMAGE_UPDATES]);
    let all = features(&daemon(&[names::IMAGE_DIGESTS, names::IMAGE_CHECKSUMS]));
    assert_eq!(all, [names::IMAGE_UPDATES, names::IMAGE_CHECKSUM_UPDATES]);
}

#[test]
fn a_lease_that_is_written_is_read() {
    let scratch = tempfile::tempdir().unwrap();
    let target = std::env::var_os(TARGET).map_or_else(|| scratch.path().to_owned(), PathBuf::from);
    let target = target.join("cluster");
    std::fs::create_dir_all(&target).unwrap();
    let lease = lease("n1", None, &facts().bounded(), Timestamp::UNIX_EPOCH);
    let text = serde_json::to_string_pretty(&lease).unwrap();
    let file = target.join("lease.json");
    std::fs::write(&file, text + "\n").unwrap();
    is_as_written(&file);
}

#[test]
fn leases_of_earlier_versions_are_read_as_they_were_written() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/state");
    let versions = std::fs::read_dir(root).unwrap();
    let leases = versions.map(|entry| entry.unwrap().path().join("cluster/lease.json"));
    let leases: Vec<_> = leases.filter(|path| path.is_file()).collect();
    assert!(!leases.is_empty());
    leases.iter().for_each(|path| is_as_written(path));
}

fn is_as_written(path: &Path) {
    let text = std::fs::read_to_string(path).unwrap();
    let lease: Lease = serde_json::from_str(&text).unwrap();
    let annotations = lease.metadata.annotations.unwrap_or_default();
    let read = NodeFacts::from_json(&annotations[names::NODE_FACTS]).unwrap();
    assert_eq!(read, facts(), "{}", path.display());
    let holder = lease.spec.unwrap().holder_identity;
    assert_eq!(holder.as_deref(), Some("n1"));
}
