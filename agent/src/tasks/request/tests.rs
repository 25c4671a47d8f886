use strum::VariantNames as _;

use super::*;

fn spec(kind: TaskKind) -> VirtualMachineTaskSpec {
    VirtualMachineTaskSpec {
        image: Some("debian".to_owned()),
        image_url: Some("https://h/a?v=1".to_owned()),
        image_tls_secret: Some("images-tls".to_owned()),
        size_bytes: Some(7),
        linked: true,
        online: true,
        discard: true,
        instance_uid: Some("p-1".to_owned()),
        snapshot: Some(SnapshotRequest {
            uid: "s-1".to_owned(),
            quiesce_seconds: Some(30),
            memory: false,
        }),
        source: Some(DiskSource {
            disk_uid: "d-1".to_owned(),
            snapshot_uid: Some("s-1".to_owned()),
        }),
        backup: Some(BackupRequest {
            uid: "b-1".to_owned(),
            target: "nfs".to_owned(),
            disk_uid: Some("d-1".to_owned()),
            manifest_sha256: Some("a".repeat(64)),
            full: true,
            quiesce_seconds: Some(30),
        }),
        ..VirtualMachineTaskSpec::new("n1", kind, "vm", "u-1")
    }
}

fn all() -> Vec<String> {
    Kind::VARIANTS.iter().map(ToString::to_string).collect()
}

#[test]
fn a_power_off_is_for_one_pod_and_immediate_without_a_timeout() {
    let mut spec = spec(TaskKind::PowerOff);
    let expected = PowerOff {
        timeout_seconds: 0,
        pod_uid: "p-1".to_owned(),
    };
    let request = for_task("t-1", "ns", &spec, &all()).unwrap();
    assert_eq!(request.kind, Some(Kind::PowerOff(expected)));
    spec.instance_uid = None;
    let refused = for_task("t-1", "ns", &spec, &all()).unwrap_err();
    assert!(refused.contains("spec.instanceUID"), "{refused}");
}

#[test]
fn a_probe_is_for_one_pod_and_a_task_without_one_ends_it() {
    let mut spec = spec(TaskKind::SetProbe);
    let requested = |spec: &_| for_task("t-1", "ns", spec, &all()).unwrap().kind;
    let ends = SetProbe {
        pod_uid: "p-1".to_owned(),
        probe: None,
    };
    assert_eq!(requested(&spec), Some(Kind::SetProbe(ends.clone())));
    spec.probe = Some(NodeProbe {
        port: 22,
        host: Some("10.0.0.5".to_owned()),
        period_seconds: 10,
        timeout_seconds: 1,
    });
    let probe = TcpProbe {
        host: "10.0.0.5".to_owned(),
        port: 22,
        period_seconds: 10,
        timeout_seconds: 1,
    };
    let sets = SetProbe {
        probe: Some(probe),
        ..ends
    };
    assert_eq!(requested(&spec), Some(Kind::SetProbe(sets)));
    spec.instance_uid = None;
    let refused = for_task("t-1", "ns", &spec, &all()).unwrap_err();
    assert!(
        refused.contains("SetProbe needs spec.instanceUID"),
        "{refused}"
    );
}

#[test]
fn a_provision_names_image_size_mode_and_machine() {
    let request = for_task("t-1", "ns", &spec(TaskKind::Provision), &all()).unwrap();
    let Some(Kind::Provision(provision)) = request.kind else {
        panic!("{request:?}")
    };
    assert_eq!(
        (request.uid.as_str(), request.vm_uid.as_str()),
        ("t-1", "u-1")
    );
    assert_eq!(provision.image, "debian");
    assert_eq!(provision.image_url, "https://h/a?v=1");
    assert_eq!(provision.image_tls_secret, "images-tls");
    assert_eq!(provision.size_bytes, 7);
    assert_eq!(provision.mode(), provision::Mode::Linked);
    assert_eq!(provision.vm_name, "ns/vm");
}

#[test]
fn a_task_for_a_snapshot_names_it_and_a_time_that_is_unset_is_none() {
    let mut wanted = spec(TaskKind::Snapshot);
    let uid = || "s-1".to_owned();
    let requested = |spec: &_| for_task("t-1", "ns", spec, &all()).unwrap().kind;
    for (seconds, memory) in [(30, false), (0, true)] {
        let taken = Snapshot {
            uid: uid(),
            quiesce_seconds: seconds,
            memory,
        };
        assert_eq!(requested(&wanted), Some(Kind::Snapshot(taken)));
        let next = wanted.snapshot.as_mut().unwrap();
        next.quiesce_seconds = None;
        next.memory = true;
    }
    wanted.kind = TaskKind::Revert;
    let reverted = Revert {
        uid: uid(),
        memory: true,
    };
    assert_eq!(requested(&wanted), Some(Kind::Revert(reverted)));
    wanted.kind = TaskKind::DeleteSnapshot;
    let deleted = DeleteSnapshot { uid: uid() };
    assert_eq!(requested(&wanted), Some(Kind::DeleteSnapshot(deleted)));
    wanted.kind = TaskKind::Freeze;
    for (seconds, expected) in [(Some(30), 30), (None, 60)] {
        wanted.snapshot.as_mut().unwrap().quiesce_seconds = seconds;
        let uid = uid();
        let freeze = Freeze {
            uid,
            seconds: expected,
        };
        assert_eq!(requested(&wanted), Some(Kind::Freeze(freeze)));
    }
}

#[test]
fn an_adoption_names_the_machine_that_takes_the_disk_over() {
    let request = for_task("t-1", "ns", &spec(TaskKind::Adopt), &all()).unwrap();
    let adopt = Adopt {
        vm_name: "ns/vm".to_owned(),
    };
    assert_eq!(request.kind, Some(Kind::Adopt(adopt)));
    assert_eq!(request.vm_uid, "u-1");
}

#[test]
fn a_clone_names_disk_snapshot_size_and_machine() {
    let mut wanted = spec(TaskKind::CloneDisk);
    let cloned = |spec: &_| for_task("t-1", "ns", spec, &all());
    let mut expected = CloneDisk {
        source_vm_uid: "d-1".to_owned(),
        snapshot_uid: "s-1".to_owned(),
        size_bytes: 7,
        vm_name: "ns/vm".to_owned(),
    };
    let request = cloned(&wanted).unwrap();
    assert_eq!(request.kind, Some(Kind::CloneDisk(expected.clone())));
    assert_eq!(request.vm_uid, "u-1");
    wanted.source.as_mut().unwrap().snapshot_uid = None;
    wanted.size_bytes = None;
    expected.snapshot_uid = String::new();
    expected.size_bytes = 0;
    let request = cloned(&wanted).unwrap();
    assert_eq!(request.kind, Some(Kind::CloneDisk(expected)));
    wanted.size_bytes = Some(-1);
    assert!(cloned(&wanted).unwrap_err().contains("spec.sizeBytes"));
    wanted.source = None;
    let refused = cloned(&wanted).unwrap_err();
    assert_eq!(refused, "a task of kind CloneDisk needs spec.source");
}

#[test]
fn a_task_for_a_backup_names_it_its_target_and_the_machine() {
    let requested = |spec: &_| for_task("t-1", "ns", spec, &all());
    let kind = |kind| requested(&spec(kind)).unwrap().kind;
    let uid = || "b-1".to_owned();
    let target = || "nfs".to_owned();
    let vm_name = || "ns/vm".to_owned();
    let made = Backup {
        uid: uid(),
        target: target(),
        vm_name: vm_name(),
        full: true,
        quiesce_seconds: 30,
        most_increments: 0,
    };
    assert_eq!(kind(TaskKind::Backup), Some(Kind::Backup(made)));
    let verified = VerifyBackup {
        uid: uid(),
        target: target(),
        vm_name: vm_name(),
        sha256: "a".repeat(64),
    };
    let verification = Some(Kind::VerifyBackup(verified));
    assert_eq!(kind(TaskKind::VerifyBackup), verification);
    let deleted = DeleteBackup {
        uid: uid(),
        target: target(),
        vm_name: vm_name(),
    };
    assert_eq!(
        kind(TaskKind::DeleteBackup),
        Some(Kind::DeleteBackup(deleted))
    );
    let restored = RestoreBackup {
        uid: uid(),
        target: target(),
        source_vm_uid: "d-1".to_owned(),
        size_bytes: 7,
        vm_name: vm_name(),
        sha256: "a".repeat(64),
    };
    let restoration = Some(Kind::RestoreBackup(restored));
    assert_eq!(kind(TaskKind::RestoreBackup), restoration);
    let mut odd = spec(TaskKind::RestoreBackup);
    odd.backup.as_mut().unwrap().disk_uid = None;
    assert!(requested(&odd).unwrap_err().contains("spec.backup.diskUID"));
    odd.backup = None;
    let refused = requested(&odd).unwrap_err();
    assert_eq!(refused, "a task of kind RestoreBackup needs spec.backup");
}

#[test]
fn an_inspection_names_image_and_url() {
    let mut wanted = spec(TaskKind::InspectImage);
    wanted.image_checksum_url = Some("https://h/SHA256SUMS".to_owned());
    let request = for_task("t-1", "ns", &wanted, &all()).unwrap();
    assert_eq!(request.vm_uid, "u-1");
    let expected = |image_url: &str| InspectImage {
        image: "debian".to_owned(),
        image_url: image_url.to_owned(),
        image_tls_secret: "images-tls".to_owned(),
        image_checksum_url: "https://h/SHA256SUMS".to_owned(),
    };
    let kind = Kind::InspectImage(expected("https://h/a?v=1"));
    assert_eq!(request.kind, Some(kind));
    wanted.image_url = None;
    let request = for_task("t-1", "ns", &wanted, &all()).unwrap();
    assert_eq!(request.kind, Some(Kind::InspectImage(expected(""))));
    wanted.image = None;
    let refused = for_task("t-1", "ns", &wanted, &all()).unwrap_err();
    assert_eq!(refused, "a task of kind InspectImage needs spec.image");
}

#[test]
fn a_pull_names_image_and_url() {
    let mut wanted = spec(TaskKind::PullImage);
    let request = for_task("t-1", "ns", &wanted, &all()).unwrap();
    let expected = PullImage {
        image: "debian".to_owned(),
        image_url: "https://h/a?v=1".to_owned(),
        image_tls_secret: "images-tls".to_owned(),
    };
    assert_eq!(request.kind, Some(Kind::PullImage(expected)));
    let older: Vec<_> = all().into_iter().filter(|k| k != "pull_image").collect();
    let refused = for_task("t-1", "ns", &wanted, &older).unwrap_err();
    assert!(
        refused.starts_with("this node cannot run tasks of kind PullImage"),
        "{refused}"
    );
    wanted.image = None;
    let refused = for_task("t-1", "ns", &wanted, &all()).unwrap_err();
    assert_eq!(refused, "a task of kind PullImage needs spec.image");
}

#[test]
fn every_kind_that_the_daemon_offers_is_sent_under_its_name() {
    for field in all() {
        let object = object_kind(&field);
        let kind = serde_json::from_value(serde_json::Value::String(object)).unwrap();
        let request = for_task("t", "ns", &spec(kind), std::slice::from_ref(&field)).unwrap();
        assert_eq!(<&str>::from(&request.kind.unwrap()), field);
    }
}

#[test]
fn an_impossible_request_gets_a_clear_error() {
    let refusal = |spec, kinds: &[String]| for_task("t", "ns", &spec, kinds).unwrap_err();
    assert!(refusal(spec(TaskKind::Save), &[]).contains("upgrade the node"));
    let mut odd = spec(TaskKind::Revert);
    odd.snapshot = None;
    let refused = refusal(odd, &all());
    assert_eq!(refused, "a task of kind Revert needs spec.snapshot");
    let mut odd = spec(TaskKind::Provision);
    odd.image = Some(String::new());
    assert!(refusal(odd.clone(), &all()).contains("spec.image"));
    odd.image = Some("i".to_owned());
    odd.size_bytes = Some(-1);
    assert!(refusal(odd, &all()).contains("spec.sizeBytes"));
}

#[test]
fn a_cancel_does_not_change_the_request() {
    let mut later = spec(TaskKind::Reset);
    later.cancel = true;
    let first = for_task("t", "ns", &spec(TaskKind::Reset), &all());
    assert_eq!(first, for_task("t", "ns", &later, &all()));
}
