//! Tests of conditions and of the cgroup driver.
//!
//! Invariant: reports are plain values.
//! Failure: a failing test names the condition.

use tapmanager::wire;

use super::*;

fn report(hypervisor: Result<(), &str>, network: Result<(bool, &str), &str>) -> Report {
    let versions = |()| libvirt::Versions {
        libvirt: "9.0.0".into(),
        qemu: "7.2.0".into(),
    };
    let status = |(ready, message): (bool, &str)| wire::Status {
        ready,
        message: message.into(),
        ..wire::Status::default()
    };
    Report {
        hypervisor: hypervisor.map(versions).map_err(Into::into),
        network: network.map(status).map_err(Into::into),
        accelerator: None,
        obstacle: None,
    }
}

/// Status, reason and message of both conditions.
fn told(report: &Report) -> [(bool, String, String); 2] {
    let conditions = conditions(report);
    let kinds: Vec<_> = conditions.iter().map(|c| c.r#type.as_str()).collect();
    assert_eq!(kinds, ["RuntimeReady", "NetworkReady"]);
    let of = |c: &v1::RuntimeCondition| (c.status, c.reason.clone(), c.message.clone());
    [of(&conditions[0]), of(&conditions[1])]
}

#[test]
fn both_conditions_are_true_when_both_helpers_answer() {
    let good = (true, String::new(), String::new());
    let conditions = told(&report(Ok(()), Ok((true, ""))));
    assert_eq!(conditions, [good.clone(), good]);
}

#[test]
fn each_condition_says_which_helper_is_in_the_way() {
    let [runtime, network] = told(&report(Err("no socket"), Ok((false, "no conflist"))));
    assert_eq!(
        runtime,
        (false, "HypervisorUnavailable".into(), "no socket".into())
    );
    assert_eq!(
        network,
        (false, "NetworkPluginNotReady".into(), "no conflist".into())
    );
    let [runtime, network] = told(&report(Ok(()), Err("gone")));
    assert!(runtime.0);
    assert_eq!(
        network,
        (false, "TapmanagerUnavailable".into(), "gone".into())
    );
}

#[test]
fn a_node_that_can_start_no_machine_is_not_ready() {
    let mut report = report(Ok(()), Ok((true, "")));
    report.obstacle = Some("kvm is required".into());
    let [runtime, network] = told(&report);
    let words = ("NoMachineCanStart".to_owned(), "kvm is required".to_owned());
    assert_eq!(runtime, (false, words.0, words.1));
    assert!(network.0);
}

#[test]
fn the_cgroup_driver_is_what_the_node_says() {
    let driver = |setting| cgroup_driver(setting);
    assert_eq!(driver(CgroupDriver::Systemd), v1::CgroupDriver::Systemd);
    assert_eq!(driver(CgroupDriver::Cgroupfs), v1::CgroupDriver::Cgroupfs);
}

#[test]
fn the_default_handler_is_listed_beside_ours() {
    let names: Vec<_> = handlers().into_iter().map(|h| h.name).collect();
    assert_eq!(names, ["", "vmlet"]);
}

#[test]
fn verbose_info_is_one_json_object() {
    let info = info::runtime(&report(Err("x"), Ok((true, ""))), &serde_json::json!({}));
    let value: serde_json::Value = serde_json::from_str(&info["info"]).unwrap();
    assert_eq!(value["libvirt"]["error"], "x");
    assert_eq!(value["network"]["ready"], true);
    assert!(value["accelerator"].is_null());
}
