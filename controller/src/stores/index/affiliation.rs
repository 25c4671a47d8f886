//! What a group names: its members, and the group that it is in.
//!
//! Invariant: all of it is in the namespace of the group.
//! Failure: none; a name that no object has is an affiliation like any other.

use std::collections::BTreeSet;

use crds::{GroupMemberKind, VirtualMachineGroup};
use kube::ResourceExt;

use crate::stores::Key;

/// What a group names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Affiliation {
    /// The group that it is a member of.
    Within(Key),
    /// A machine in its boot order.
    Machine(Key),
    /// A group in its boot order.
    Group(Key),
}

impl Affiliation {
    /// Everything that a group names.
    #[must_use]
    pub fn all(group: &VirtualMachineGroup) -> BTreeSet<Self> {
        let namespace = group.namespace().unwrap_or_default();
        let here = |name: &str| Key::new(&namespace, name);
        let within = group.spec.group_name.as_deref().map(here);
        let members = group.spec.boot_order.iter().flat_map(|tier| &tier.members);
        let members = members.map(|member| match member.kind {
            GroupMemberKind::VirtualMachine => Self::Machine(here(&member.name)),
            GroupMemberKind::VirtualMachineGroup => Self::Group(here(&member.name)),
        });
        members.chain(within.map(Self::Within)).collect()
    }
}
