//! What the doctor says about given nodes.
//!
//! Invariant: whatever is not ok comes with advice.
//! Failure: none.

use super::super::facts::Disk;
use super::super::info::Network;
use super::super::{Level, report};
use super::*;

fn healthy() -> Facts {
    let info = Info {
        accelerator: Some("kvm".into()),
        accelerator_reason: "a probe guest ran".into(),
        libvirt: Part::Works("9.0.0".into()),
        libvirt_uri: Some("qemu:///system".into()),
        qemu: Part::Works("7.2.9".into()),
        network: Some(Network {
            ready: true,
            message: String::new(),
            made_by: "pods; /etc/cni/net.d/10-pods.conflist; bridge".into(),
        }),
        tapmanager: Part::Works(String::new()),
        ..Default::default()
    };
    let conditions = ["RuntimeReady", "NetworkReady"].map(|name| Condition {
        name: name.into(),
        is_met: true,
        message: String::new(),
    });
    Facts {
        daemon: Daemon::Answers(Box::new(Answers {
            version: "vmlet 0.1.0".into(),
            conditions: conditions.to_vec(),
            info,
            image_directory: None,
        })),
        kvm: Device::Usable,
        tun: Device::Usable,
        features: vec![
            ("bridge", Feature::Present),
            ("nf_tables", Feature::Loadable),
        ],
        cgroup: Cgroup::V2,
        disk: Some(Disk {
            directory: "/var/lib/vmlet".into(),
            available_bytes: 6 * GIB,
        }),
        cni_config: Some(CniDir {
            path: "/etc/cni/net.d".into(),
            files: Some(1),
        }),
        cni_plugins: vec![
            CniDir {
                path: "/opt/cni/bin".into(),
                files: None,
            },
            CniDir {
                path: "/usr/lib/cni".into(),
                files: Some(20),
            },
        ],
    }
}

fn answers(facts: &mut Facts) -> &mut Answers {
    match &mut facts.daemon {
        Daemon::Answers(answers) => answers,
        Daemon::Absent { .. } | Daemon::Mute(_) => panic!("the daemon is there"),
    }
}

fn finding(facts: &Facts, check: &str) -> Finding {
    all(facts).into_iter().rfind(|f| f.check == check).unwrap()
}

#[test]
fn a_healthy_node_has_nothing_to_do() {
    insta::assert_snapshot!(report::text(&all(&healthy())), @"
    ok    daemon       vmlet 0.1.0
    ok    kvm          used: a probe guest ran
    ok    libvirt      9.0.0
    ok    qemu         7.2.9
    ok    tapmanager   answers
    ok    network      pods; /etc/cni/net.d/10-pods.conflist; bridge
    ok    cni config   /etc/cni/net.d, 1 file
    ok    cni plugins  /usr/lib/cni, 20
    ok    tun          /dev/net/tun opens
    ok    bridge       in the kernel
    ok    nf_tables    a module, loaded when it is needed
    ok    cgroup       version 2
    ok    disk         6.0 GiB free in /var/lib/vmlet
    13 ok, 0 to look at, 0 to repair
    ");
}

#[test]
fn without_a_daemon_the_node_is_still_checked() {
    let daemon = Daemon::Absent {
        error: "no daemon at /run/x".into(),
        advice: "start it",
    };
    let facts = Facts {
        daemon,
        disk: None,
        ..healthy()
    };
    let found = all(&facts);
    assert_eq!(
        found[0],
        Finding::fail("daemon", "no daemon at /run/x", "start it")
    );
    assert_eq!(finding(&facts, "kvm").level, Level::Warn);
    assert_eq!(finding(&facts, "tun").level, Level::Ok);
    assert!(
        found
            .iter()
            .all(|f| f.check != "libvirt" && f.check != "disk")
    );
}

#[test]
fn software_emulation_is_explained_by_the_daemon_and_the_device() {
    let mut facts = healthy();
    answers(&mut facts).info.accelerator = Some("tcg".into());
    answers(&mut facts).info.accelerator_reason = "KVM_RUN: no such device".into();
    let present = finding(&facts, "kvm");
    assert!(
        present.what.contains("KVM_RUN: no such device"),
        "{}",
        present.what
    );
    facts.kvm = Device::Missing;
    let missing = finding(&facts, "kvm");
    assert_eq!((present.level, missing.level), (Level::Warn, Level::Warn));
    assert_ne!(present.advice, missing.advice);
}

#[test]
fn an_unmet_condition_fails_with_its_message() {
    let mut facts = healthy();
    answers(&mut facts).conditions[0].is_met = false;
    answers(&mut facts).conditions[0].message = "libvirt does not answer".into();
    let found = finding(&facts, "daemon");
    let what = "RuntimeReady is not met: libvirt does not answer";
    assert_eq!((found.level, found.what.as_str()), (Level::Fail, what));
}

#[test]
fn advice_about_libvirt_names_the_one_that_the_daemon_uses() {
    let mut facts = healthy();
    answers(&mut facts).info.libvirt = Part::Broken("down".into());
    assert!(
        finding(&facts, "libvirt")
            .advice
            .unwrap()
            .contains("systemctl start")
    );
    let uri = "qemu+unix:///system?socket=/tmp/node/run/libvirt-sock";
    answers(&mut facts).info.libvirt_uri = Some(uri.into());
    assert!(finding(&facts, "libvirt").advice.unwrap().contains(uri));
}

#[test]
fn the_network_is_judged_once_also_by_its_condition_alone() {
    let mut facts = healthy();
    answers(&mut facts).info.network = None;
    answers(&mut facts).conditions[1].is_met = false;
    answers(&mut facts).conditions[1].message = "no conflist".into();
    let found: Vec<_> = all(&facts)
        .into_iter()
        .filter(|f| f.level == Level::Fail)
        .collect();
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].check, found[0].what.as_str()),
        ("network", "no conflist")
    );
}

#[test]
fn free_space_is_judged_by_two_marks() {
    let level = |available_bytes| {
        let disk = Disk {
            directory: "/x".into(),
            available_bytes,
        };
        finding(
            &Facts {
                disk: Some(disk),
                ..healthy()
            },
            "disk",
        )
        .level
    };
    assert_eq!(
        [DISK_WARN, DISK_WARN - 1, DISK_FAIL, DISK_FAIL - 1].map(level),
        [Level::Ok, Level::Warn, Level::Warn, Level::Fail,]
    );
}

#[test]
fn whatever_is_not_ok_comes_with_advice() {
    let mut facts = Facts {
        kvm: Device::Broken("io".into()),
        tun: Device::Missing,
        features: vec![
            ("bridge", Feature::Absent),
            ("veth", Feature::Unknown),
            ("nf_tables", Feature::Absent),
        ],
        cgroup: Cgroup::Absent,
        disk: Some(Disk {
            directory: "/x".into(),
            available_bytes: 0,
        }),
        cni_config: Some(CniDir {
            path: "/x".into(),
            files: Some(0),
        }),
        cni_plugins: vec![CniDir {
            path: "/x".into(),
            files: None,
        }],
        ..healthy()
    };
    answers(&mut facts).info = Info {
        libvirt: Part::Broken("down".into()),
        ..Default::default()
    };
    let found = all(&facts);
    for finding in &found {
        assert_eq!(
            finding.advice.is_some(),
            finding.level != Level::Ok,
            "{finding:?}"
        );
    }
    let failed: Vec<_> = found
        .iter()
        .filter(|f| f.level == Level::Fail)
        .map(|f| f.check)
        .collect();
    assert_eq!(
        failed,
        [
            "libvirt",
            "cni config",
            "cni plugins",
            "tun",
            "bridge",
            "cgroup",
            "disk"
        ]
    );
}
