//! Annotations that have no effect on this machine.
//!
//! Invariant: a finding has the name that the pod uses.
//! Failure: none; a value that is not valid is refused elsewhere.

use std::collections::BTreeMap;

use podspec::{Annotations, CpuModel, Key};

use super::finding::Finding;
use crate::vm::host::accelerator::{Accelerator, Choice};

/// A size for a root disk that has its own.
pub(super) fn of_root_size(annotations: &BTreeMap<String, String>) -> Option<Finding> {
    let (name, _) = Annotations::new(annotations).raw(Key::RootVolumeSize)?;
    Some(Finding::new(format!(
        "annotation {name} has no effect: the root disk is a volume of the pod, which has a size of \
         its own"
    )))
}

/// The model of the node's CPU, where the emulator has a CPU of its own.
pub(super) fn of_cpu_model(
    annotations: &BTreeMap<String, String>,
    choice: Option<&Choice>,
) -> Option<Finding> {
    let given = Annotations::new(annotations);
    let (name, _) = given.raw(Key::CpuModel)?;
    let wants_host = given.get(Key::CpuModel).ok()? == Some(CpuModel::HostModel);
    let is_emulated = choice.is_some_and(|choice| choice.accelerator == Accelerator::Tcg);
    (wants_host && is_emulated).then(|| {
        Finding::new(format!(
            "annotation {name} has no effect: the node has no KVM, and the guest has the CPU of the \
             emulator"
        ))
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("host-model", Some(Accelerator::Tcg), true)]
    #[case("host-model", Some(Accelerator::Kvm), false)]
    #[case("host-model", None, false)]
    #[case("", Some(Accelerator::Tcg), false)]
    fn the_model_of_the_node_needs_kvm(
        #[case] model: &str,
        #[case] accelerator: Option<Accelerator>,
        #[case] is_reported: bool,
    ) {
        let annotations = [("VirtletCPUModel".to_owned(), model.to_owned())].into();
        let choice = accelerator.map(|accelerator| Choice {
            accelerator,
            reason: String::new(),
        });
        let found = of_cpu_model(&annotations, choice.as_ref());
        assert_eq!(found.is_some(), is_reported);
        let words = "annotation VirtletCPUModel has no effect";
        assert!(found.is_none_or(|finding| finding.text.starts_with(words)));
    }
}
