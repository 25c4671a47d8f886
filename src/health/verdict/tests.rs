//! What is said of given nodes.
//!
//! Invariant: one reason, and every lack in the message.
//! Failure: none.

use rstest::rstest;
use service::apparmor::State;
use tapmanager::wire::Status;

use super::*;
use crate::vm::accelerator::{Accelerator, Choice};
use crate::vm::{CgroupVersion, Equipment, Kernel, Offer};

fn report() -> Report {
    Report {
        hypervisor: Ok(libvirt::Versions {
            libvirt: "9.0.0".to_owned(),
            qemu: "7.2.0".to_owned(),
        }),
        network: Ok(Status {
            ready: true,
            ..Status::default()
        }),
        accelerator: Some(Choice {
            accelerator: Accelerator::Kvm,
            reason: "a guest ran".to_owned(),
        }),
        emulated: None,
        obstacle: None,
        equipment: Some(Equipment {
            kernel: Kernel {
                landlock: 6,
                idmapped_mounts: Some(true),
                cgroup: Some(CgroupVersion::V2),
                apparmor: State::Enforced,
            },
            helpers_together: None,
            copies_share_blocks: None,
            uefi_missing: None,
            vmlet_guest_missing: None,
        }),
        offer: Offer::default(),
    }
}

fn equipped(change: impl FnOnce(&mut Equipment)) -> Report {
    let mut report = report();
    change(report.equipment.as_mut().unwrap());
    report
}

fn kernel(change: impl FnOnce(&mut Kernel)) -> Report {
    equipped(|equipment| change(&mut equipment.kernel))
}

#[test]
fn a_node_that_has_everything_is_ready() {
    let verdict = report().verdict();
    assert_eq!(verdict.readiness, Readiness::Ready);
    assert_eq!(verdict.reason, "MachinesCanStart");
    for state in [State::Disabled, State::Unknown] {
        let verdict = kernel(|kernel| kernel.apparmor = state).verdict();
        assert_eq!(verdict.readiness, Readiness::Ready, "{state}");
    }
    let unknown = Report {
        equipment: None,
        ..report()
    };
    assert_eq!(unknown.verdict().readiness, Readiness::Unknown);
}

#[rstest]
#[case(kernel(|k| k.landlock = 0), "LandlockMissing")]
#[case(kernel(|k| k.idmapped_mounts = Some(false)), "IdmappedMountsMissing")]
#[case(kernel(|k| k.cgroup = None), "CgroupsMissing")]
#[case(kernel(|k| k.apparmor = State::Absent), "AppArmorProfileMissing")]
#[case(kernel(|k| k.apparmor = State::Complaining), "AppArmorProfileComplains")]
fn what_the_kernel_lacks_limits_the_node(#[case] report: Report, #[case] reason: &str) {
    let verdict = report.verdict();
    assert_eq!(
        (verdict.readiness, verdict.reason),
        (Readiness::Limited, reason)
    );
}

#[test]
fn a_node_whose_helpers_share_the_namespaces_of_the_daemon_is_limited() {
    let refused = Some("failed to leave them".to_owned());
    let verdict = equipped(|equipment| equipment.helpers_together = refused).verdict();
    assert_eq!(
        (verdict.readiness, verdict.reason),
        (Readiness::Limited, "HelperNamespacesMissing")
    );
    assert!(verdict.message.ends_with(": failed to leave them"));
}

#[test]
fn a_node_without_the_program_for_guests_is_limited() {
    let missing = Some("failed to find it".to_owned());
    let verdict = equipped(|equipment| equipment.vmlet_guest_missing = missing).verdict();
    assert_eq!(
        (verdict.readiness, verdict.reason),
        (Readiness::Limited, "VmletGuestMissing")
    );
    assert!(verdict.message.ends_with(": failed to find it"));
}

#[test]
fn an_obstacle_goes_before_emulation_and_the_message_has_every_lack() {
    let mut report = kernel(|kernel| kernel.landlock = 0);
    report.emulated = Some("/dev/kvm does not exist".to_owned());
    let verdict = report.verdict();
    assert_eq!(
        (verdict.readiness, verdict.reason),
        (Readiness::Limited, "SoftwareEmulation")
    );
    assert!(
        verdict
            .message
            .contains("/dev/kvm does not exist; the kernel has no Landlock")
    );
    report.network = Err("no socket".to_owned());
    report.obstacle = Some("kvm is required".to_owned());
    let verdict = report.verdict();
    assert_eq!(
        (verdict.readiness, verdict.reason),
        (Readiness::NotReady, "NoMachineCanStart")
    );
    assert!(
        verdict
            .message
            .starts_with("kvm is required; no socket; machines run by")
    );
    report.hypervisor = Err("connection refused".to_owned());
    assert_eq!(report.verdict().reason, "HypervisorUnavailable");
}

#[test]
fn a_node_that_still_probes_says_so() {
    let mut report = report();
    report.accelerator = None;
    assert_eq!(report.verdict().readiness, Readiness::Unknown);
    report.obstacle = Some("kvm is required".to_owned());
    assert_eq!(report.verdict().readiness, Readiness::NotReady);
}
