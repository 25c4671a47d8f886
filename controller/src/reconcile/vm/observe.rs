//! What is so: the machine's pod, its node, its answers. The first part of a pass.
//!
//! Invariant: nothing in the cluster is changed, but that an orphaned pod of the machine's name is
//! adopted.
//! Failure: two live pods are an error that a person must look into.

pub(super) mod answer;
pub(super) mod backups;
pub(super) mod content;
pub(super) mod find;
pub(super) mod group;
pub(super) mod location;
pub(super) mod machine_type;
pub(super) mod mode;
pub(super) mod parts;
pub(crate) mod placeholder;
pub(crate) mod pods;
pub(super) mod probe;
pub(super) mod promotion;
pub(super) mod room;
pub(super) mod root_disk;
pub(super) mod snapshots;
pub(super) mod view;
