//! What the daemon says about itself and its node.
//!
//! Invariant: versions of libvirt are those of the last connection, also while there is none.
//! Failure: a figure of a file system that does not answer is 0.

use nodeapi::v1;
use nodeapi::v1::run_task_request::Kind;
use strum::VariantNames as _;

use super::{LOOK, Service};
use crate::node::wire;
use crate::platform::Platform;

impl<P: Platform> Service<P> {
    /// The answer to `Info`.
    pub(super) async fn describe(&self) -> v1::InfoResponse {
        let state_dir = self.state_dir.clone();
        let look = move || nix::sys::statvfs::statvfs(&state_dir);
        let space = self.reader.read("space", LOOK, look).await;
        let space = space.and_then(Result::ok);
        let bytes = |blocks: fn(&nix::sys::statvfs::Statvfs) -> u64| {
            let space = space.as_ref();
            space.map_or(0, |s| blocks(s).saturating_mul(s.fragment_size()))
        };
        let report = self.services.health.last_report();
        let versions = report.as_ref().and_then(|r| r.hypervisor.as_ref().ok());
        // While libvirt is away they are those of the last connection.
        let versions = versions
            .cloned()
            .or_else(|| self.services.machines.versions());
        let accelerator = self.services.containers.accelerator();
        v1::InfoResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            installation_id: self.services.identity.installation.clone(),
            boot_id: self.services.identity.boot.clone(),
            accelerator: accelerator
                .map(|choice| choice.accelerator.to_string())
                .unwrap_or_default(),
            libvirt_version: versions
                .as_ref()
                .map(|v| v.libvirt.clone())
                .unwrap_or_default(),
            qemu_version: versions.map(|v| v.qemu).unwrap_or_default(),
            task_kinds: Kind::VARIANTS.iter().map(ToString::to_string).collect(),
            disk_capacity_bytes: bytes(|s| s.blocks()),
            disk_available_bytes: bytes(|s| s.blocks_available()),
            machine_types: self.services.containers.offer().machine_types,
            bound_machines: self.services.containers.bound().await,
            emulated_because: self
                .services
                .containers
                .emulated_because()
                .unwrap_or_default(),
            features: self.features(),
            host: report.as_deref().map(wire::host),
        }
    }

    /// What this daemon can do and earlier ones cannot, and the targets of backups that it has.
    fn features(&self) -> Vec<String> {
        let known = [
            podspec::names::DISK_WITHOUT_IMAGE,
            podspec::names::DISK_MANIFESTS,
            podspec::names::IMAGE_DIGESTS,
            podspec::names::IMAGE_CHECKSUMS,
            podspec::names::DISK_PULLS,
            podspec::names::SNAPSHOT_MEMORY,
            podspec::names::BACKUP_CLAIMS,
        ];
        let targets = self.services.agenda.targets.names();
        let targets = targets.map(|name| format!("{}{name}", podspec::names::BACKUP_TARGET));
        let known = known.map(str::to_owned).into_iter();
        known.chain(targets).collect()
    }
}
