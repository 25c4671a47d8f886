//! How much translated code an emulator without hardware virtualisation may keep.
//!
//! Invariant: guest and emulator together stay within the limit of their pod, as far as the limit
//! has room for an emulator at all.
//! Failure: none. Too little costs time: the emulator translates code again.

use crate::sandbox::SandboxConfig;
use crate::vm::model::Container;

/// A boot of a small Linux fills about this much, in MiB.
const LEAST: u64 = 64;
/// QEMU's own limit is 1 GiB, which it reaches in time. A boot of Debian fills 735 MiB of it. With a limit
/// of 256 MiB QEMU discards all translated code three times during the boot, which takes 3 % longer.
const MOST: u64 = 512;
/// Part of the guest's memory: code is a part of what is in it, and is several times as large when
/// it is translated.
const PART: u64 = 4;
/// What an emulator needs beside that, in MiB.
const OTHER: u64 = 96;
const MIB: u64 = 1 << 20;

/// The limit for the machine of a pod, in MiB. `overhead` is what the node adds to the limit of a
/// pod that has no RuntimeClass.
pub(in crate::vm) fn translations(row: &Container, pod: &SandboxConfig, overhead: u64) -> u64 {
    most(row.spec.machine.memory.get(), pod, overhead)
}

fn most(memory: u64, pod: &SandboxConfig, overhead: u64) -> u64 {
    let most = (memory / PART).clamp(LEAST, MOST);
    let limit = u64::try_from(pod.resources.memory_limit).unwrap_or(0);
    if limit == 0 {
        return most;
    }
    let of_class = u64::try_from(pod.memory_overhead).unwrap_or(0);
    let more = match of_class {
        0 if pod.runtime_handler.is_empty() => overhead,
        other => other,
    };
    let all = limit.saturating_add(more) / MIB;
    let room = all.saturating_sub(memory).saturating_sub(OTHER);
    room.clamp(LEAST, most)
}

#[cfg(test)]
mod tests {
    use podspec::PodResources;

    use super::*;

    fn most_for(memory: u64, handler: &str, limit: i64, overhead: i64) -> u64 {
        let mib = |mib: i64| mib << 20;
        let pod = SandboxConfig {
            runtime_handler: handler.to_owned(),
            resources: PodResources {
                memory_limit: mib(limit),
                ..PodResources::default()
            },
            memory_overhead: mib(overhead),
            ..SandboxConfig::default()
        };
        most(memory, &pod, 160 << 20)
    }

    #[test]
    fn the_limit_of_the_pod_has_room_for_it() {
        // As deployed, and with more.
        assert_eq!(most_for(1024, "vmlet", 1024, 160), 64);
        assert_eq!(most_for(1024, "vmlet", 1024, 300), 204);
        assert_eq!(most_for(1024, "vmlet", 1024, 1000), 256);
        // A guest that is smaller than the limit.
        assert_eq!(most_for(1024, "vmlet", 1200, 160), 240);
        // Without a RuntimeClass the node adds the overhead, with one that has none nothing does.
        assert_eq!(most_for(1024, "", 1024, 0), 64);
        assert_eq!(most_for(1024, "vmlet", 1024, 0), 64);
    }

    #[test]
    fn without_a_limit_the_memory_of_the_guest_counts() {
        assert_eq!(most_for(128, "vmlet", 0, 160), 64);
        assert_eq!(most_for(1024, "vmlet", 0, 160), 256);
        assert_eq!(most_for(65_536, "vmlet", 0, 0), 512);
    }
}
