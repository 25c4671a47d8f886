//! Who belongs to whom: machines to groups, groups to groups.
//!
//! Invariant: a member belongs to a group only if it names the group and the boot order of the group
//! names it. Names decide, as they are in the stores; a chain of groups is followed for a bounded number
//! of steps.
//! Failure: [`Unlinked`] with a sentence for the member's condition.

use std::collections::BTreeSet;
use std::sync::Arc;

use crds::{GroupMemberKind, VirtualMachine, VirtualMachineGroup};
use kube::ResourceExt;

use crate::stores::{Affiliation, Key, Stores};

/// Most groups within one another.
const DEPTH: usize = 16;
/// Most groups below one group that a pass, or a change of that group, goes through.
const MOST_BELOW: usize = 1024;

/// Why a member does not belong to the group that it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unlinked {
    /// The other side does not exist.
    NotFound(String),
    /// The other side does not name this one.
    NotMember(String),
    /// The groups contain each other.
    Cycle(String),
}

impl Unlinked {
    /// Reason of the condition.
    pub(crate) const fn reason(&self) -> &'static str {
        match self {
            Self::NotFound(_) => "NotFound",
            Self::NotMember(_) => "NotMember",
            Self::Cycle(_) => "Error",
        }
    }

    /// Message of the condition.
    pub(crate) fn message(&self) -> &str {
        match self {
            Self::NotFound(text) | Self::NotMember(text) | Self::Cycle(text) => text,
        }
    }
}

/// The group with this key.
pub(crate) fn find(stores: &Stores, key: &Key) -> Option<Arc<VirtualMachineGroup>> {
    stores.groups.get(&key.reference())
}

/// Whether the boot order names the member.
pub(crate) fn lists(group: &VirtualMachineGroup, kind: GroupMemberKind, name: &str) -> bool {
    let mut all = group.spec.boot_order.iter().flat_map(|tier| &tier.members);
    all.any(|member| member.kind == kind && member.name == name)
}

/// The group that a machine belongs to; `None`: it names none.
pub(crate) fn of_machine(
    stores: &Stores,
    vm: &VirtualMachine,
) -> Option<Result<Arc<VirtualMachineGroup>, Unlinked>> {
    let name = vm.spec.group_name.as_deref()?;
    let kind = GroupMemberKind::VirtualMachine;
    Some(link(stores, kind, &Key::from_object(vm), name))
}

/// The group that a group belongs to; `None`: it names none.
pub(crate) fn of_group(
    stores: &Stores,
    group: &VirtualMachineGroup,
) -> Option<Result<Arc<VirtualMachineGroup>, Unlinked>> {
    let name = group.spec.group_name.as_deref()?;
    let kind = GroupMemberKind::VirtualMachineGroup;
    Some(link(stores, kind, &Key::from_object(group), name))
}

fn link(
    stores: &Stores,
    kind: GroupMemberKind,
    member: &Key,
    name: &str,
) -> Result<Arc<VirtualMachineGroup>, Unlinked> {
    let Some(group) = find(stores, &Key::new(&member.namespace, name)) else {
        let text = format!("the group {name} does not exist");
        return Err(Unlinked::NotFound(text));
    };
    if group.metadata.deletion_timestamp.is_some() {
        let text = format!("the group {name} is being deleted");
        return Err(Unlinked::NotFound(text));
    }
    if !lists(&group, kind, &member.name) {
        let text = format!(
            "the boot order of the group {name} does not name {}",
            member.name
        );
        return Err(Unlinked::NotMember(text));
    }
    match cycle(stores, &group) {
        Some(text) => Err(Unlinked::Cycle(text)),
        None => Ok(group),
    }
}

/// The groups above this one, from itself upwards, as they name each other.
fn chain(stores: &Stores, group: &VirtualMachineGroup) -> Vec<String> {
    let namespace = group.namespace().unwrap_or_default();
    let mut names = vec![group.name_any()];
    let mut next = group.spec.group_name.clone();
    while let Some(name) = next {
        let is_known = names.contains(&name);
        names.push(name.clone());
        if is_known || names.len() > DEPTH {
            break;
        }
        let above = find(stores, &Key::new(&namespace, name));
        next = above.and_then(|above| above.spec.group_name.clone());
    }
    names
}

/// Why the groups above this one have no outermost group, in words.
pub(crate) fn cycle(stores: &Stores, group: &VirtualMachineGroup) -> Option<String> {
    let names = chain(stores, group);
    let last = names.last()?;
    let first = names.iter().position(|name| name == last)?;
    if first + 1 < names.len() {
        let cycle = names[first..].join(" -> ");
        return Some(format!(
            "the groups contain each other: {cycle}; remove groupName from one of them"
        ));
    }
    (names.len() > DEPTH).then(|| format!("more than {DEPTH} groups are within one another"))
}

/// The outermost group that a group belongs to. There is no cycle above it.
pub(crate) fn outermost(
    stores: &Stores,
    group: Arc<VirtualMachineGroup>,
) -> Arc<VirtualMachineGroup> {
    let mut group = group;
    for _ in 0..DEPTH {
        match of_group(stores, &group) {
            Some(Ok(above)) => group = above,
            _ => break,
        }
    }
    group
}

/// A group and all groups below it that name the one above.
pub(crate) fn with_groups_below(stores: &Stores, top: &Key) -> BTreeSet<Key> {
    let mut all = BTreeSet::from([top.clone()]);
    let mut open = vec![top.clone()];
    while let Some(group) = open.pop() {
        let named_by = stores.index.groups_with(&Affiliation::Within(group));
        for below in named_by {
            if all.len() < MOST_BELOW && all.insert(below.clone()) {
                open.push(below);
            }
        }
    }
    all
}
