//! What a machine names, or waits for.
//!
//! Invariant: the relations of a machine follow from its object alone.
//! Failure: none; a name that no object has is a relation like any other.

use std::collections::BTreeSet;

use crds::VirtualMachine;
use crds::conditions::{self, CREATED, FAILURE};
use kube::ResourceExt;

use crate::stores::Key;

/// What the API server's answer has, in whichever words, when a rule of a namespace refuses an
/// object.
const REFUSAL: &str = "is forbidden: ";

/// An object that machines name, or whose change they wait for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Relation {
    /// A class.
    Class(Key),
    /// An image of a namespace, or of the cluster with an empty one.
    Image(Key),
    /// A claim behind a volume.
    Claim(Key),
    /// A data volume made with the machine.
    DataVolume(Key),
    /// A network beyond the pod's own.
    Network(Key),
    /// The storage class of the root disk.
    StorageClass(String),
    /// A group.
    Group(Key),
    /// A machine of which a clone is to be made.
    Source(Key),
    /// A snapshot of which a clone is to be made.
    Snapshot(Key),
    /// A backup that a disk is to be made from.
    Backup(Key),
    /// The node of the root disk.
    Node(String),
    /// The namespace with its quotas and limit ranges, of a machine that the API server refused
    /// something.
    Refused(String),
}

impl Relation {
    /// Everything that a machine names, and waits for.
    #[must_use]
    pub fn named_by(vm: &VirtualMachine) -> BTreeSet<Self> {
        let namespace = vm.namespace().unwrap_or_default();
        let here = |name: &str| Key::new(&namespace, name);
        let spec = &vm.spec;
        let mut all = BTreeSet::new();
        all.extend(spec.class_name.as_deref().map(here).map(Self::Class));
        all.extend(spec.group_name.as_deref().map(here).map(Self::Group));
        let image = spec.image.as_ref().map(|image| image.name.as_str());
        for name in image.into_iter().chain(spec.image_name.as_deref()) {
            all.insert(Self::Image(here(name)));
            all.insert(Self::Image(Key::new("", name)));
        }
        for claim in spec.volumes.iter().flat_map(|v| &v.persistent_volume_claim) {
            all.insert(Self::Claim(here(&claim.claim_name)));
        }
        all.extend(own_root_claim(vm).map(|name| Self::Claim(here(&name))));
        for template in &spec.data_volume_templates {
            all.insert(Self::DataVolume(here(&template.name)));
        }
        let interfaces = spec.network.iter().flat_map(|n| &n.interfaces);
        for reference in interfaces.flat_map(|i| i.network_ref.as_deref()) {
            all.insert(Self::Network(network(&namespace, reference)));
        }
        let class = spec.storage_class.clone();
        all.extend(class.map(Self::StorageClass));
        if let Some(source) = spec.source.as_ref().filter(|_| is_unmade_clone(vm)) {
            let machine = source.virtual_machine.as_ref();
            all.extend(machine.map(|named| Self::Source(here(&named.name))));
            let taken = vm.metadata.uid.as_deref().filter(|_| machine.is_some());
            all.extend(taken.map(|uid| Self::Snapshot(here(&clone_snapshot(uid)))));
            let snapshot = source.snapshot.as_ref();
            all.extend(snapshot.map(|named| Self::Snapshot(here(&named.name))));
            let backup = source.backup.as_ref();
            all.extend(backup.map(|named| Self::Backup(here(&named.name))));
        }
        let node = vm.status.iter().flat_map(|status| &status.node_name);
        all.extend(node.cloned().map(Self::Node));
        if is_refused(vm) {
            all.insert(Self::Refused(namespace));
        }
        all
    }
}

/// Name of the snapshot that is taken of a machine that runs, for the clone with this UID.
#[must_use]
pub fn clone_snapshot(uid: &str) -> String {
    format!("clone-{uid}")
}

/// Whether the machine is a clone whose disk is not made yet.
#[must_use]
pub fn is_unmade_clone(vm: &VirtualMachine) -> bool {
    let status = vm.status.as_ref();
    let is_made = status.is_some_and(|s| conditions::is_true(&s.conditions, CREATED));
    vm.spec.source.is_some() && !is_made
}

/// Whether the last pass failed by a rule of the API server, as far as its words show.
fn is_refused(vm: &VirtualMachine) -> bool {
    let conditions = vm.status.iter().map(|status| &status.conditions);
    let mut failure = conditions.flat_map(|all| conditions::find(all, FAILURE));
    failure.any(|failure| failure.message.contains(REFUSAL))
}

/// Name of the claim that is made for a root disk in a storage class; none where a volume is the root
/// disk, or the node has it.
#[must_use]
pub fn own_root_claim(vm: &VirtualMachine) -> Option<String> {
    let class = vm.spec.storage_class.as_deref().unwrap_or_default();
    let mut claims = vm
        .spec
        .volumes
        .iter()
        .flat_map(|v| &v.persistent_volume_claim);
    let has_root = claims.any(|claim| claim.root);
    (!class.is_empty() && !has_root).then(|| format!("{}-root", vm.name_any()))
}

/// The network that a machine of that namespace means: `namespace/name`, or the name alone.
#[must_use]
pub fn network(namespace: &str, reference: &str) -> Key {
    match reference.split_once('/') {
        Some((namespace, name)) => Key::new(namespace, name),
        None => Key::new(namespace, reference),
    }
}
