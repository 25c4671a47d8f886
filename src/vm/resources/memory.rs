//! Detects that the kernel killed a machine for lack of memory.
//!
//! Invariant: the kernel's counter of the pod's cgroup is compared with what it was before the
//! machine was started, which is in the row: an earlier machine of the pod, or a restart of the
//! daemon, changes nothing.
//! Failure: a counter that cannot be read, or not in time, is zero; the end then has another reason.

use std::time::Duration;

use podspec::ContainerId;

use crate::platform::Platform;
use crate::sandbox::Sandbox;
use crate::vm::service::Containers;

/// Time for the counter: starts and ends wait for it.
const TIME: Duration = Duration::from_secs(2);

impl<P: Platform> Containers<P> {
    /// How many processes of the pod have been killed so far.
    pub(in crate::vm) async fn oom_kills(&self, sandbox: &Sandbox) -> i64 {
        let Ok(pod) = cgroup::PodCgroup::parse(&sandbox.config.cgroup_parent) else {
            return 0;
        };
        let root = self.settings.cgroup_root.clone();
        let read = move || pod.oom_kills(&root);
        let read = self.meter.at_cgroup(sandbox.id.clone(), TIME, read).await;
        let kills = read.flatten().unwrap_or(0);
        i64::try_from(kills).unwrap_or(i64::MAX)
    }

    /// Whether the counter has grown since the machine of a container was started.
    pub(in crate::vm) async fn was_killed_for_memory(&self, id: &ContainerId) -> bool {
        let Some(row) = self.parts.table.get(id) else {
            return false;
        };
        match self.parts.sandboxes.get(&row.sandbox) {
            Some(sandbox) => self.oom_kills(&sandbox).await > row.oom_kills,
            None => false,
        }
    }
}
