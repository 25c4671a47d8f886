//! Limits of one process within its pod machine: files of cgroup v2 in the guest.
//!
//! Invariant: what is recorded as resources is in force. A daemon that ends between the two leaves
//! the old record; the client's repetition gives the same limits once more.
//! Failure: a guest that does not apply them, or what the pod machine has not; nothing is recorded.

use guestapi::Setting;

use crate::platform::Platform;
use crate::vm::error::{Error, Result};
use crate::vm::model::{Container, LinuxResources};
use crate::vm::resources::merged;
use crate::vm::service::Containers;
use crate::vm::state::Phase;

/// What a quota without a period is a part of, in microseconds.
const PERIOD: i64 = 100_000;

/// Most CPU shares of cgroup v1, and the largest weight of v2; both begin near 1.
const SHARES: (i64, i64) = (2, 262_144);
const WEIGHTS: (i64, i64) = (1, 10_000);

/// The files of a cgroup, and what is written to them, in this order.
pub(super) fn settings(resources: &LinuxResources) -> Vec<Setting> {
    let mut all = Vec::new();
    let mut set = |name: &str, value: String| {
        let name = name.to_owned();
        all.push(Setting { name, value });
    };
    let period = match resources.cpu_period {
        period @ 1.. => period,
        _ => PERIOD,
    };
    match resources.cpu_quota {
        quota @ 1.. => set("cpu.max", format!("{quota} {period}")),
        ..0 => set("cpu.max", format!("max {period}")),
        0 => {}
    }
    if resources.cpu_shares > 0 {
        set("cpu.weight", weight(resources.cpu_shares).to_string());
    }
    let memory = resources.memory_limit_in_bytes;
    let with_swap = resources.memory_swap_limit_in_bytes;
    match memory {
        1.. => set("memory.max", memory.to_string()),
        ..0 => set("memory.max", "max".to_owned()),
        0 => {}
    }
    match (memory, with_swap) {
        (1.., 1..) => {
            let swap = with_swap.saturating_sub(memory).max(0);
            set("memory.swap.max", swap.to_string());
        }
        (_, swap) if swap < 0 => set("memory.swap.max", "max".to_owned()),
        _ => {}
    }
    for (name, value) in &resources.unified {
        set(name, value.clone());
    }
    all
}

/// The weight that shares are worth, as runc computes it.
fn weight(shares: i64) -> i64 {
    let shares = shares.clamp(SHARES.0, SHARES.1);
    WEIGHTS.0 + (shares - SHARES.0) * (WEIGHTS.1 - WEIGHTS.0) / (SHARES.1 - SHARES.0)
}

impl<P: Platform> Containers<P> {
    /// Changes the limits of a process; the caller holds the sandbox's lock.
    pub(in crate::vm) async fn update_process(
        &self,
        row: &Container,
        update: &LinuxResources,
    ) -> Result<()> {
        let after = merged(row.resources(), update);
        if after == *row.resources() {
            return Ok(());
        }
        self.check_process(row, row.resources(), &after)?;
        let limits = settings(&after);
        if row.phase.may_run() {
            let agent = self.agent_of(row).await?;
            let set = agent.set_limits(row.id.as_str(), limits.clone()).await;
            set.map_err(crate::vm::exec::Error::from)?;
        }
        if row.phase != Phase::Exited {
            let mut start = self.read_start(&row.id).await?;
            start.limits = limits;
            self.write_start(&row.id, &start).await?;
        }
        self.record(row, |row| row.updated = Some(after.clone()))
            .await?;
        tracing::info!(container = %row.id, "resources changed");
        Ok(())
    }

    /// The pod machine keeps its size.
    fn check_process(
        &self,
        row: &Container,
        before: &LinuxResources,
        after: &LinuxResources,
    ) -> Result<()> {
        if let Some(what) = kept(before, after) {
            let reason = "a process keeps what it was created with, or what its machine has";
            return Err(Error::Resize {
                id: row.id.clone(),
                what,
                reason: reason.to_owned(),
            });
        }
        let Some(machine) = self.pod_machine(&row.sandbox) else {
            return Ok(());
        };
        let size = machine.size();
        let memory = i64::try_from(size.memory.bytes()).unwrap_or(i64::MAX);
        let refuse = |what, reason| {
            Err(Error::Resize {
                id: row.id.clone(),
                what,
                reason,
            })
        };
        if after.memory_limit_in_bytes > memory {
            let mib = size.memory.get();
            let reason =
                format!("the machine of the pod has {mib} MiB for its life: make a new pod");
            return refuse("memory", reason);
        }
        let quota = after.cpu_quota;
        let period = after.cpu_period.max(1);
        if quota > 0 && quota > period.saturating_mul(size.vcpus.into()) {
            let vcpus = size.vcpus;
            let reason = format!(
                "the machine of the pod has {vcpus} virtual CPUs for its life: make a new pod"
            );
            return refuse("CPU", reason);
        }
        Ok(())
    }
}

/// What changes, although it is not in a cgroup of the guest.
fn kept(before: &LinuxResources, after: &LinuxResources) -> Option<&'static str> {
    let changes = [
        ("oom_score_adj", before.oom_score_adj != after.oom_score_adj),
        ("CPU set", before.cpuset_cpus != after.cpuset_cpus),
        ("memory nodes", before.cpuset_mems != after.cpuset_mems),
        (
            "huge pages",
            before.hugepage_limits != after.hugepage_limits,
        ),
    ];
    let mut changes = changes.into_iter().filter(|(_, changes)| *changes);
    changes.next().map(|(what, _)| what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(resources: &LinuxResources) -> Vec<(String, String)> {
        let all = settings(resources).into_iter();
        all.map(|setting| (setting.name, setting.value)).collect()
    }

    #[test]
    fn resources_become_files_of_a_cgroup() {
        assert_eq!(written(&LinuxResources::default()), []);
        let resources = LinuxResources {
            cpu_period: 50_000,
            cpu_quota: 25_000,
            cpu_shares: 1024,
            memory_limit_in_bytes: 100,
            memory_swap_limit_in_bytes: 150,
            unified: [("pids.max".to_owned(), "9".to_owned())].into(),
            ..LinuxResources::default()
        };
        let expected = [
            ("cpu.max", "25000 50000"),
            ("cpu.weight", "39"),
            ("memory.max", "100"),
            ("memory.swap.max", "50"),
            ("pids.max", "9"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(written(&resources), expected);
        let unlimited = LinuxResources {
            cpu_quota: -1,
            memory_limit_in_bytes: -1,
            memory_swap_limit_in_bytes: -1,
            ..LinuxResources::default()
        };
        let expected = [
            ("cpu.max", "max 100000"),
            ("memory.max", "max"),
            ("memory.swap.max", "max"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(written(&unlimited), expected);
    }

    #[test]
    fn what_is_in_no_cgroup_of_the_guest_stays() {
        let before = LinuxResources::default();
        let limits = LinuxResources {
            cpu_quota: 1000,
            memory_limit_in_bytes: 1000,
            ..LinuxResources::default()
        };
        assert_eq!(kept(&before, &limits), None);
        let pinned = LinuxResources {
            cpuset_cpus: "0-1".to_owned(),
            ..LinuxResources::default()
        };
        assert_eq!(kept(&before, &pinned), Some("CPU set"));
        let preferred = LinuxResources {
            oom_score_adj: 1,
            ..LinuxResources::default()
        };
        assert_eq!(kept(&before, &preferred), Some("oom_score_adj"));
    }

    #[test]
    fn shares_become_weights() {
        let pairs = [
            (0, 1),
            (2, 1),
            (1024, 39),
            (262_144, 10_000),
            (i64::MAX, 10_000),
        ];
        for (shares, expected) in pairs {
            assert_eq!(weight(shares), expected, "{shares}");
        }
    }
}
