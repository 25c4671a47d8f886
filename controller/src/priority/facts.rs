//! The inputs of the priority, read from the objects.
//!
//! Invariant: a fact that an object does not hold is absent, never guessed.
//! Failure: none.

use crds::conditions::{CREATED, DISK_PROMOTION_SYNCED, is_true};
use crds::names::RECONCILE_PRIORITY;
use crds::vm::PromoteDisksMode;
use crds::{PowerState, VirtualMachine};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

/// What the priority depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts<'a> {
    /// Text of the annotation that overrides everything.
    pub annotation: Option<&'a str>,
    /// Absent for objects of other kinds.
    pub machine: Option<Machine<'a>>,
}

/// The same for a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine<'a> {
    /// It has a deletion timestamp.
    pub deleting: bool,
    /// Its condition `VirtualMachineCreated` is exactly True.
    pub created: bool,
    /// Desired power, whichever spelling the machine uses.
    pub wanted: Option<PowerState>,
    /// Power in the status.
    pub observed: Option<PowerState>,
    /// The state of its pod differs from the status.
    pub pod_contradicts: bool,
    /// `None`: the specification does not mention the network.
    pub network_enabled: Option<bool>,
    /// A primary address of either family is known.
    pub has_address: bool,
    /// `spec.promoteDisksMode` as text; empty when absent.
    pub promotion: &'a str,
    /// Its condition `VirtualMachineDiskPromotionSynced` is True.
    pub promoted: bool,
}

impl<'a> Facts<'a> {
    /// The facts of a machine; `wanted` is the power state that `lifecycle` derives from its
    /// desired state.
    #[must_use]
    pub fn of_machine(vm: &'a VirtualMachine, wanted: Option<PowerState>) -> Self {
        let status = vm.status.as_ref();
        let conditions = status.map_or(&[][..], |status| &status.conditions);
        let network = status.and_then(|status| status.network.as_ref());
        let filled = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let machine = Machine {
            deleting: vm.metadata.deletion_timestamp.is_some(),
            created: is_true(conditions, CREATED),
            wanted,
            observed: status.and_then(|status| status.power_state),
            pod_contradicts: false,
            network_enabled: vm.spec.network.as_ref().map(|network| !network.disabled),
            has_address: network
                .is_some_and(|known| filled(&known.primary_ip4) || filled(&known.primary_ip6)),
            promotion: match vm.spec.promote_disks_mode {
                None => "",
                Some(PromoteDisksMode::Online) => "Online",
                Some(PromoteDisksMode::Offline) => "Offline",
                Some(PromoteDisksMode::Disabled) => "Disabled",
            },
            promoted: is_true(conditions, DISK_PROMOTION_SYNCED),
        };
        Self {
            annotation: vm.annotations().get(RECONCILE_PRIORITY).map(String::as_str),
            machine: Some(machine),
        }
    }

    /// The facts of an object of another kind.
    #[must_use]
    pub fn of_other(annotation: Option<&'a str>) -> Self {
        Self {
            annotation,
            machine: None,
        }
    }

    /// The same, knowing that the state of the machine's pod differs from its status.
    #[must_use]
    pub fn contradicted(mut self, by_pod: bool) -> Self {
        if let Some(machine) = &mut self.machine {
            machine.pod_contradicts = by_pod;
        }
        self
    }
}

/// Whether a machine's pod, as its event shows it, says otherwise than the machine's status: the
/// status has it on, and the pod has ended or (`None`) no longer exists.
#[must_use]
pub fn pod_contradicts(vm: &VirtualMachine, pod: Option<&Pod>) -> bool {
    let is_on = vm
        .status
        .as_ref()
        .is_some_and(|status| status.power_state == Some(PowerState::PoweredOn));
    let phase = pod
        .and_then(|pod| pod.status.as_ref())
        .and_then(|status| status.phase.as_deref());
    is_on && (pod.is_none() || matches!(phase, Some("Succeeded" | "Failed")))
}
