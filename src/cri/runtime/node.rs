//! The status of the runtime and of its node.
//!
//! Invariant: a condition is what the helper behind it has just answered, or did not long ago if it
//! is late now.
//! Failure: none; what is wrong is the message of a condition.

use std::path::Path;

use cri_proto::v1;
use tonic::Status;

use super::Runtime;
use crate::config::CgroupDriver;
use crate::cri::convert::sandbox::HANDLER;
use crate::cri::info;
use crate::health::{Lack, Report};
use crate::sandbox::PROCESS_HANDLER;

/// The protocol's own version; kubelet takes no other.
const PROTOCOL: &str = "0.1.0";

/// False while `vm.accelerator = "auto"` emulates. kubelet decides nothing by it.
const HARDWARE: &str = "HardwareVirtualization";

/// Exists below the root of a node where systemd is the init process.
const SYSTEMD: &str = "run/systemd/system";

/// The driver that kubelet is to use on the node whose file system is mounted at `node`: a daemon
/// in a container sees another `/run`.
pub(super) fn cgroup_driver(setting: CgroupDriver, node: &Path) -> v1::CgroupDriver {
    match setting {
        CgroupDriver::Systemd => v1::CgroupDriver::Systemd,
        CgroupDriver::Auto if node.join(SYSTEMD).is_dir() => v1::CgroupDriver::Systemd,
        CgroupDriver::Cgroupfs | CgroupDriver::Auto => v1::CgroupDriver::Cgroupfs,
    }
}

/// The conditions that kubelet requires, and one of ours.
fn conditions(report: &Report) -> Vec<v1::RuntimeCondition> {
    let condition = |kind: &str, state: Result<(), Lack>| {
        let lack = state.err();
        v1::RuntimeCondition {
            r#type: kind.to_owned(),
            status: lack.is_none(),
            reason: lack.as_ref().map_or("", |lack| lack.reason).to_owned(),
            message: lack.map(|lack| lack.message).unwrap_or_default(),
        }
    };
    vec![
        condition("RuntimeReady", report.runtime()),
        condition("NetworkReady", report.pod_network()),
        condition(HARDWARE, report.hardware()),
    ]
}

fn handlers() -> Vec<v1::RuntimeHandler> {
    let handler = |name: &str| v1::RuntimeHandler {
        name: name.to_owned(),
        features: Some(v1::RuntimeHandlerFeatures {
            recursive_read_only_mounts: true,
            ..v1::RuntimeHandlerFeatures::default()
        }),
    };
    vec![handler(""), handler(HANDLER), handler(PROCESS_HANDLER)]
}

impl Runtime {
    pub(super) async fn version(
        &self,
        _: v1::VersionRequest,
    ) -> Result<v1::VersionResponse, Status> {
        Ok(v1::VersionResponse {
            version: PROTOCOL.to_owned(),
            runtime_name: "vmlet".to_owned(),
            runtime_version: env!("CARGO_PKG_VERSION").to_owned(),
            runtime_api_version: "v1".to_owned(),
        })
    }

    pub(super) async fn status(
        &self,
        request: v1::StatusRequest,
    ) -> Result<v1::StatusResponse, Status> {
        let report = self.app.health.check().await;
        let info = if request.verbose {
            let settings = self.app.settings_in_force();
            let config = info::with_settings(&self.paths, &settings);
            info::runtime(&report, &config, &self.app.images.pulls())
        } else {
            info::Info::new()
        };
        Ok(v1::StatusResponse {
            status: Some(v1::RuntimeStatus {
                conditions: conditions(&report),
            }),
            info,
            runtime_handlers: handlers(),
            features: Some(v1::RuntimeFeatures::default()),
        })
    }

    pub(super) async fn runtime_config(
        &self,
        _: v1::RuntimeConfigRequest,
    ) -> Result<v1::RuntimeConfigResponse, Status> {
        let cgroup_driver = self.cgroup_driver.into();
        Ok(v1::RuntimeConfigResponse {
            linux: Some(v1::LinuxRuntimeConfiguration { cgroup_driver }),
        })
    }

    /// The pod CIDR is for runtimes that write the CNI configuration themselves.
    pub(super) async fn update_runtime_config(
        &self,
        _: v1::UpdateRuntimeConfigRequest,
    ) -> Result<v1::UpdateRuntimeConfigResponse, Status> {
        Ok(v1::UpdateRuntimeConfigResponse {})
    }
}

#[cfg(test)]
mod tests {
    use tapmanager::wire;

    use super::*;
    use crate::{images, vm};

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
            emulated: None,
            obstacle: None,
            equipment: None,
            offer: vm::Offer::default(),
        }
    }

    /// Status, reason and message of both conditions that kubelet requires.
    fn reported(report: &Report) -> [(bool, String, String); 2] {
        let conditions = conditions(report);
        let kinds: Vec<_> = conditions.iter().map(|c| c.r#type.as_str()).collect();
        assert_eq!(
            kinds,
            ["RuntimeReady", "NetworkReady", "HardwareVirtualization"]
        );
        let of = |c: &v1::RuntimeCondition| (c.status, c.reason.clone(), c.message.clone());
        [of(&conditions[0]), of(&conditions[1])]
    }

    #[test]
    fn both_conditions_are_true_when_both_helpers_answer() {
        let good = (true, String::new(), String::new());
        let conditions = reported(&report(Ok(()), Ok((true, ""))));
        assert_eq!(conditions, [good.clone(), good]);
    }

    #[test]
    fn each_condition_names_the_helper_that_fails() {
        let [runtime, network] = reported(&report(Err("no socket"), Ok((false, "no conflist"))));
        assert_eq!(
            runtime,
            (false, "HypervisorUnavailable".into(), "no socket".into())
        );
        assert_eq!(
            network,
            (false, "NetworkPluginNotReady".into(), "no conflist".into())
        );
        let [runtime, network] = reported(&report(Ok(()), Err("gone")));
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
        let [runtime, network] = reported(&report);
        let words = ("NoMachineCanStart".to_owned(), "kvm is required".to_owned());
        assert_eq!(runtime, (false, words.0, words.1));
        assert!(network.0);
    }

    #[test]
    fn a_node_that_emulates_is_ready_and_says_so() {
        let mut report = report(Ok(()), Ok((true, "")));
        assert!(conditions(&report)[2].status);
        report.emulated = Some("/dev/kvm does not exist".into());
        let conditions = conditions(&report);
        assert!(conditions[0].status && !conditions[2].status);
        let words = (
            conditions[2].reason.as_str(),
            conditions[2].message.as_str(),
        );
        assert_eq!(words, ("SoftwareEmulation", "/dev/kvm does not exist"));
    }

    #[test]
    fn the_cgroup_driver_is_that_of_the_node() {
        let node = tempfile::tempdir().unwrap();
        let driver = |setting| cgroup_driver(setting, node.path());
        assert_eq!(driver(CgroupDriver::Systemd), v1::CgroupDriver::Systemd);
        assert_eq!(driver(CgroupDriver::Auto), v1::CgroupDriver::Cgroupfs);
        std::fs::create_dir_all(node.path().join("run/systemd/system")).unwrap();
        assert_eq!(driver(CgroupDriver::Auto), v1::CgroupDriver::Systemd);
        assert_eq!(driver(CgroupDriver::Cgroupfs), v1::CgroupDriver::Cgroupfs);
    }

    #[test]
    fn the_default_handler_is_listed_beside_ours() {
        let names: Vec<_> = handlers().into_iter().map(|h| h.name).collect();
        assert_eq!(names, ["", "vmlet", "vmlet-process"]);
    }

    #[test]
    fn verbose_info_is_one_json_object() {
        let pull = images::Progress {
            received: 5,
            total: Some(10),
        };
        let pulls = [("vmlet.dev/a:1".to_owned(), pull)];
        let report = report(Err("x"), Ok((true, "")));
        let info = info::runtime(&report, &serde_json::json!({}), &pulls);
        let value: serde_json::Value = serde_json::from_str(&info["info"]).unwrap();
        assert_eq!(value["libvirt"]["error"], "x");
        assert_eq!(value["network"]["ready"], true);
        assert!(value["accelerator"].is_null());
        let pull = serde_json::json!({
            "image": "vmlet.dev/a:1", "receivedBytes": 5, "totalBytes": 10,
        });
        assert_eq!(value["pulls"], serde_json::json!([pull]));
    }
}
