//! Parts of a request that the guest gets by its cloud-init disk.
//!
//! Invariant: agrees with what is put on the disk.
//! Failure: none: annotations without a meaning are refused elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use podspec::{GuestData, Source};

use crate::foreign::Foreign;
use crate::sandbox::SandboxConfig;
use crate::sources::has_files;
use crate::vm::file_disks::FileDisk;
use crate::vm::lifecycle::request;
use crate::vm::model::{ContainerConfig, Mount};
use crate::vm::shares::{Share, volumes, volumes_of};

/// What the disk has.
#[derive(Debug, Default)]
pub(in crate::vm) struct Given {
    /// The variables with proper names.
    pub(super) environment: bool,
    /// All addresses of the pod.
    pub(super) addresses: bool,
    /// A network configuration without a place for the search list.
    pub(super) no_searches: bool,
    /// A file of a volume is the root disk.
    pub(super) root_file: bool,
    /// Paths of mounts that reach the guest.
    pub(super) mounts: BTreeSet<String>,
    /// Those that it may mount.
    pub(super) shares: BTreeMap<String, Share>,
}

impl Given {
    /// What the guest has by its shares and disks alone.
    pub(in crate::vm) fn mounted(
        config: &ContainerConfig,
        shares: &[Share],
        disks: &[FileDisk],
    ) -> Self {
        let shares = || shares.iter().filter(|share| !share.is_of_pod());
        let is_disk = |mount: &&Mount| disks.iter().any(|disk| disk.is_in(mount));
        let of_disks = config.mounts.iter().filter(is_disk);
        let of_disks = of_disks.map(|mount| &mount.container_path);
        let of_shares = shares().map(|share| &share.path);
        Self {
            root_file: disks.iter().any(FileDisk::is_root),
            mounts: of_shares.chain(of_disks).cloned().collect(),
            shares: shares()
                .map(|share| (share.path.clone(), share.clone()))
                .collect(),
            ..Self::default()
        }
    }

    /// For a container that is a process and has its volumes.
    pub(in crate::vm) fn of_process(config: &ContainerConfig) -> Self {
        let paths = volumes::wanted(config).into_iter();
        let paths = paths.map(|mount| mount.container_path.clone());
        Self {
            mounts: paths.clone().collect(),
            shares: paths.map(|path| (path, Share::of_pod())).collect(),
            ..Self::default()
        }
    }

    /// For a container that is a machine.
    pub(in crate::vm) async fn for_machine(
        foreign: &Foreign,
        pod: &SandboxConfig,
        config: &ContainerConfig,
        shares: &[Share],
        disks: &[FileDisk],
    ) -> Self {
        let shared = Self::mounted(config, shares, disks);
        let data = request::guest_data(pod, config).ok().flatten();
        // A CD-ROM for Windows Setup has nothing else.
        let Some(data) = data.filter(|data| !data.is_sysprep()) else {
            return shared;
        };
        let mounts = config.mounts.iter().filter(|mount| mount.is_of_the_guest());
        let mounts = mounts.cloned().collect::<Vec<_>>();
        let uid = pod.metadata.uid.clone();
        let look = move || {
            let given = mounts
                .into_iter()
                .filter(|mount| has_files(&mount.host_path, &uid));
            given
                .map(|mount| mount.container_path)
                .collect::<BTreeSet<_>>()
        };
        let owner = volumes_of(&pod.metadata.uid);
        let mut mounts = foreign.look(&owner, look).await.unwrap_or_default();
        mounts.extend(shared.mounts);
        Self {
            environment: true,
            addresses: data.has_addresses(),
            no_searches: !data.has_searches(),
            root_file: shared.root_file,
            mounts,
            shares: shared.shares,
        }
    }
}

/// Where the daemon itself reads what kubelet has mounted.
pub(super) fn mounts_of_the_daemon(pod: &SandboxConfig, config: &ContainerConfig) -> Vec<String> {
    let mut annotations = pod.annotations.clone();
    annotations.extend(config.annotations.clone());
    let data = GuestData::from_pod(&annotations).ok().flatten();
    let sources = data.map(|data| data.sources()).unwrap_or_default();
    sources.iter().map(Source::mount_path).collect()
}
