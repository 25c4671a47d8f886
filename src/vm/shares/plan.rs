//! Which mounts of a container are shares.
//!
//! Invariant: tags are unique in a machine, and follow from the order of the mounts. A directory comes
//! after those above it, whatever the order of the mounts: the guest mounts them one after the other.
//! Failure: more directories than a machine can have.

use std::path::{Path, PathBuf};

use podspec::{Annotations, GuestFile, Role, Shares, Source};

use super::{Protocol, Share};
use crate::platform::Platform;
use crate::sandbox::Sandbox;
use crate::vm::error::Result;
use crate::vm::file_disks::FileDisk;
use crate::vm::lifecycle::request;
use crate::vm::model::{ContainerConfig, Mount};
use crate::vm::service::Containers;
use crate::vm::shares::ShareError;

/// Most shares of one machine: each takes a place on the virtual board and, by virtiofs, a process.
const MOST: usize = 16;
/// Volumes of Virtlet's driver: the description of a disk, which is no data of the pod.
const DISK_DESCRIPTIONS: &str = "/volumes/virtlet~flexvolume_driver/";

impl<P: Platform> Containers<P> {
    /// The shares of a container that is a machine.
    pub(in crate::vm) async fn wanted_shares(
        &self,
        sandbox: &Sandbox,
        config: &ContainerConfig,
        disks: &[FileDisk],
    ) -> Result<Vec<Share>> {
        let annotations = request::annotations(sandbox, config);
        let shares = Annotations::new(&annotations).shares()?;
        let instance = request::instance(sandbox, config)?;
        let protocol = match shares {
            Shares::Auto => Protocol::Virtiofs,
            Shares::NineP => Protocol::NineP,
            Shares::Off => return Ok(Vec::new()),
        };
        if instance.role != Role::Machine || instance.restore {
            return Ok(Vec::new());
        }
        let mounts = config
            .mounts
            .iter()
            .filter(|mount| is_for_guest(mount) && !disks.iter().any(|disk| disk.is_in(mount)));
        let mounts: Vec<_> = mounts.cloned().collect();
        let root = self.settings.shares.root.clone();
        let look = move || {
            let is_there = |mount: &Mount| below(&root, &mount.host_path).is_dir();
            let mut directories: Vec<_> = mounts.into_iter().filter(is_there).collect();
            directories.sort_by_key(Mount::depth);
            directories
        };
        let owner = volumes_of(&sandbox.config.metadata.uid);
        let directories = self.foreign.look(&owner, look).await?;
        if directories.len() > MOST {
            return Err(ShareError::TooMany {
                found: directories.len(),
                most: MOST,
            }
            .into());
        }
        let shares = directories.into_iter().enumerate();
        let share = |(number, mount): (usize, Mount)| Share {
            tag: format!("vmlet-{number}"),
            host_path: mount.host_path,
            path: mount.container_path,
            read_only: mount.readonly,
            protocol,
        };
        Ok(shares.map(share).collect())
    }
}

pub(super) fn is_for_guest(mount: &Mount) -> bool {
    let path = &mount.container_path;
    let is_described = mount.host_path.contains(DISK_DESCRIPTIONS);
    GuestFile::is_path(path) && !Source::is_mount_path(path) && !is_described
}

/// Who the threads work for that look through all volumes of a pod.
pub(in crate::vm) fn volumes_of(pod_uid: &str) -> String {
    format!("a volume of pod {pod_uid}")
}

/// A path of the node, as this process reaches it.
pub(in crate::vm) fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}
