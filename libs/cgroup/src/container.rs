//! Which processes end with a container: those in the cgroup of its pod.
//!
//! Invariant: a function of two texts, those of `/proc/PID/cgroup`, as the node's own cgroup
//! namespace shows them.
//! Failure: a process that is in no pod of kubelet's, or does not see its pod, has none.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What kubelet calls the cgroup above all pods, in each of its spellings.
const PODS: &str = "kubepods";

/// The cgroups of the pod that a container belongs to: one in each hierarchy, often all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerPod(BTreeSet<PathBuf>);

impl ContainerPod {
    /// The pod of the container that a process runs in.
    #[must_use]
    pub fn from_cgroups(text: &str) -> Option<Self> {
        let is_pods = |path: &Path| path.to_string_lossy().contains(PODS);
        let pods = paths(text).filter_map(Path::parent);
        let pods: BTreeSet<_> = pods
            .filter(|pod| is_pods(pod))
            .map(Path::to_owned)
            .collect();
        (!pods.is_empty()).then_some(Self(pods))
    }

    /// Whether a process is in it, in any hierarchy.
    #[must_use]
    pub fn holds(&self, text: &str) -> bool {
        paths(text).any(|path| self.0.iter().any(|pod| path.starts_with(pod)))
    }
}

fn paths(text: &str) -> impl Iterator<Item = &Path> {
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.map(Path::new)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const POD: &str = "/kubepods/burstable/pod1";

    #[rstest]
    #[case::of_libvirtd("0::/kubepods/burstable/pod1/c2\n", true)]
    #[case::of_the_machine("0::/kubepods/burstable/pod2/vmlet\n", false)]
    #[case::a_longer_name("0::/kubepods/burstable/pod11/c2\n", false)]
    #[case::left_in_one_hierarchy(
        "9:memory:/kubepods/burstable/pod2\n1:name=systemd:/kubepods/burstable/pod1/c2\n",
        true
    )]
    #[case::nothing("", false)]
    fn a_process_ends_with_the_containers_of_its_pod(#[case] text: &str, #[case] holds: bool) {
        let own = format!("12:cpu,cpuacct:{POD}/c1\n1:name=systemd:{POD}/c1\n");
        assert_eq!(ContainerPod::from_cgroups(&own).unwrap().holds(text), holds);
    }

    #[test]
    fn slices_are_parsed_and_a_process_outside_pods_has_none() {
        let slice = "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podx.slice";
        let pod =
            ContainerPod::from_cgroups(&format!("0::{slice}/cri-containerd-1.scope")).unwrap();
        assert!(pod.holds(&format!("0::{slice}/cri-containerd-2.scope")));
        for other in ["0::/system.slice/vmlet.service\n", "0::/\n", "", "nonsense"] {
            assert_eq!(ContainerPod::from_cgroups(other), None, "{other}");
        }
    }
}
