//! Cgroups of pods: kubelet makes and limits them, we put a process in and read what was used.
//!
//! Invariant: a [`PodCgroup`] names a directory below the mount, never outside it. No limit is ever
//! written here: a pod's limits are kubelet's.
//! Failure: the error of a placement names the step; a figure that cannot be read is absent.
//!
//! # Example
//!
//! ```
//! use std::path::Path;
//!
//! use cgroup::PodCgroup;
//!
//! // What kubelet names in `LinuxPodSandboxConfig.cgroup_parent`.
//! let cgroup = PodCgroup::parse("/kubepods/burstable/pod1234")?;
//! let usage = cgroup.usage(Path::new("/sys/fs/cgroup"));
//! println!("{usage:?}");
//! # Ok::<(), cgroup::Error>(())
//! ```

mod container;
mod place;
mod read;
#[cfg(test)]
mod version_2;

pub use container::ContainerPod;
pub use place::{Error, PodCgroup};
pub use read::{
    CpuLimits, CpuTimes, Detail, DeviceIo, Memory, MemoryDetail, Pressure, Pressures, Stall, Tasks,
    Usage,
};

/// Below the pod's directory on version 2, where a directory with children holds no processes.
const LEAF: &str = "vmlet";
