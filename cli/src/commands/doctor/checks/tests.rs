//! What the doctor says about given nodes.
//!
//! Invariant: whatever is not ok comes with advice.
//! Failure: none.

use super::super::facts::Disk;
use super::super::hardening::Hardening;
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
        apparmor: AppArmor {
            profile: State::Enforced,
            daemon: Some(State::Enforced),
            libvirtd: Include::Allows,
        },
        hardening: Hardening {
            threads: Some(false),
            merging: Some(false),
            swaps: Some(Vec::new()),
            nested: Some(false),
            defects: Some(Vec::new()),
        },
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
    ok    apparmor     the profile libvirt-vmlet confines QEMU
    ok    apparmor     the profile vmlet, of the daemon, is loaded
    ok    apparmor     the profile of libvirtd allows vmwrapper
    ok    threads      one hardware thread per core
    ok    merged pages the kernel merges no pages (KSM is off)
    ok    swap         none
    ok    nested       guests run no guests of their own
    ok    processor    the kernel knows no defect that it does not mitigate
    ok    disk         6.0 GiB free in /var/lib/vmlet
    21 ok, 0 to look at, 0 to repair
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
fn apparmor_that_confines_nothing_is_a_warning_and_its_absence_is_none() {
    let all = |profile, daemon, libvirtd| {
        apparmor(&AppArmor {
            profile,
            daemon,
            libvirtd,
        })
    };
    let findings = |profile, libvirtd| all(profile, None, libvirtd);
    assert_eq!(findings(State::Disabled, Include::NoProfile), []);
    for profile in [State::Absent, State::Complaining, State::Unknown] {
        for libvirtd in [Include::Missing, Include::Unreadable] {
            let found = findings(profile, libvirtd);
            assert!(found.iter().all(|f| f.level == Level::Warn), "{found:?}");
            assert_eq!(found.len(), 2);
        }
    }
    let missing = findings(State::Absent, Include::Missing);
    let advice: Vec<_> = missing.into_iter().filter_map(|f| f.advice).collect();
    assert!(advice[0].contains("--replace /etc/apparmor.d/vmlet-qemu"));
    assert!(advice[1].contains("/etc/apparmor.d/local/usr.sbin.libvirtd"));
    for state in [State::Absent, State::Complaining] {
        let found = all(State::Enforced, Some(state), Include::NoProfile);
        assert_eq!(found[1].level, Level::Warn);
        let advice = found[1].advice.as_deref().unwrap();
        assert!(advice.contains("/etc/apparmor.d/vmlet"), "{advice}");
    }
    let hidden = all(State::Unknown, Some(State::Unknown), Include::NoProfile);
    assert_eq!(hidden.len(), 1);
}

#[test]
fn the_json_has_a_version_and_what_the_daemon_says_of_the_node() {
    let mut facts = healthy();
    let condition = serde_json::json!({ "type": "VmletReady", "status": "True" });
    answers(&mut facts).info.node = serde_json::json!({ "condition": condition });
    let json = |facts: &Facts| -> serde_json::Value {
        let text = report::json(facts, &all(facts)).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let found = json(&facts);
    assert_eq!(found["apiVersion"], "doctor.vmlet.dev/v1");
    assert_eq!(found["kind"], "NodeReport");
    assert_eq!(found["passed"], true);
    let node = serde_json::json!({
        "condition": condition, "accelerator": "kvm",
        "libvirtVersion": "9.0.0", "qemuVersion": "7.2.9",
    });
    assert_eq!(found["node"], node);
    assert_eq!(found["findings"][0]["check"], "daemon");
    facts.daemon = Daemon::Mute("x".to_owned());
    let found = json(&facts);
    assert_eq!(
        (&found["passed"], &found["node"]),
        (&false.into(), &serde_json::Value::Null)
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
        apparmor: AppArmor {
            profile: State::Absent,
            daemon: None,
            libvirtd: Include::Missing,
        },
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
