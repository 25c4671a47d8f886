//! From the report of `vmlet-guest` to metrics.
//!
//! Invariant: everything here comes from the guest: texts are bounded and printable, and each mount
//! point has one metric of a name, whatever the guest reports.
//! Failure: none.

use std::collections::HashSet;

use guestapi::FILE_SYSTEMS;
use service::telemetry::bounded;

use super::names;
use super::{SECOND, Samples};
use crate::guest::Report;

impl Samples {
    /// What the guest itself reported last.
    pub(super) fn guest(&mut self, report: &Report) {
        let facts = &report.facts;
        for (name, value) in [
            (&names::GUEST_UPTIME, facts.uptime / SECOND),
            (&names::GUEST_CPU, facts.cpu / SECOND),
            (&names::GUEST_MEMORY, facts.memory),
            (&names::GUEST_MEMORY_AVAILABLE, facts.memory_available),
            (&names::GUEST_SWAP, facts.swap),
            (&names::GUEST_SWAP_FREE, facts.swap_free),
        ] {
            self.put(name, value);
        }
        let mut seen = HashSet::new();
        for fs in facts.file_systems.iter().take(FILE_SYSTEMS) {
            let point = bounded(&fs.mount_point);
            let device = bounded(&fs.device);
            let kind = bounded(&fs.kind);
            let labels = [&point, &device, &kind].map(String::as_str);
            for (name, value) in [
                (&names::GUEST_FS_SIZE, fs.size),
                (&names::GUEST_FS_USED, fs.used),
                (&names::GUEST_FS_INODES, fs.inodes),
                (&names::GUEST_FS_INODES_USED, fs.inodes_used),
            ] {
                if !seen.contains(&point) {
                    self.put_with(name, labels, value);
                }
            }
            seen.insert(point);
        }
    }
}
