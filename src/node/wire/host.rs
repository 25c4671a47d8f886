//! What the node has for machines, as a message.
//!
//! Invariant: made of the last report; no helper is asked. Texts and lists are bounded.
//! Failure: none; what is not known is empty.

use nodeapi::v1;
use nodeapi::v1::host::Readiness as Wire;

use crate::health::{Readiness, Report};
use crate::vm::{CgroupVersion, Kernel};

/// Bytes of the message.
const LONGEST: usize = 1024;
/// CPU models.
const MOST_MODELS: usize = 256;

/// The message for a report.
pub(in crate::node) fn host(report: &Report) -> v1::Host {
    let verdict = report.verdict();
    let readiness = match verdict.readiness {
        Readiness::Unknown => Wire::Unknown,
        Readiness::Ready => Wire::Ready,
        Readiness::Limited => Wire::Limited,
        Readiness::NotReady => Wire::NotReady,
    };
    let equipment = report.equipment.as_ref();
    let models = report.offer.cpu_models.iter().take(MOST_MODELS);
    v1::Host {
        readiness: readiness.into(),
        reason: verdict.reason.to_owned(),
        message: bounded(verdict.message),
        kernel: equipment.map(|of| kernel(of.kernel)),
        cpu_models: models.cloned().collect(),
        uefi: equipment.map(|of| of.uefi_missing.is_none()),
    }
}

fn kernel(kernel: Kernel) -> v1::Kernel {
    v1::Kernel {
        landlock_abi: kernel.landlock,
        idmapped_mounts: kernel.idmapped_mounts,
        cgroup_version: kernel.cgroup.map_or(0, CgroupVersion::number),
        app_armor: kernel.apparmor.as_str().to_owned(),
    }
}

fn bounded(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(LONGEST));
    text
}
