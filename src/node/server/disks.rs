//! What the daemon answers about the disks of the node.
//!
//! Invariant: looks at their file system have a limit, so that one that hangs holds no call up for good.
//! Failure: `UNAVAILABLE` while the file system does not answer.

use std::sync::Arc;

use nodeapi::v1;
use podspec::VmUid;
use tonic::Status;

use super::codes::manifest_error;
use super::{LOOK, Service};
use crate::disk::manifest::Manifest;
use crate::disk::{self, Disks};
use crate::node::wire;
use crate::platform::Platform;

impl<P: Platform> Service<P> {
    /// Every disk of the node.
    pub(super) async fn listed_disks(&self) -> Result<Vec<v1::Disk>, Status> {
        let disks = Arc::clone(&self.services.disks);
        let looked = self
            .reader
            .read("disks", LOOK, move || listed(&disks))
            .await;
        let hangs =
            || Status::unavailable("the file system of the disks does not answer: try again");
        let disks = looked.ok_or_else(hangs)?;
        disks.map_err(|error| Status::internal(crate::one_line(&error)))
    }

    /// The manifest beside a disk.
    pub(super) async fn manifest_of(&self, vm: VmUid) -> Result<Manifest, Status> {
        let disks = Arc::clone(&self.services.disks);
        let found = self
            .reader
            .read("manifests", LOOK, move || disks.manifest(vm))
            .await;
        let hangs =
            || Status::unavailable("the file system of the disks does not answer: try again");
        let found = found.ok_or_else(hangs)?;
        let found = found.map_err(|error| manifest_error(&error))?;
        let none = || Status::not_found(format!("no manifest lies beside disk {vm}"));
        found.ok_or_else(none)
    }
}

/// Every disk of the node, whether its record can be read or not.
fn listed(disks: &Disks) -> disk::Result<Vec<v1::Disk>> {
    // Before the records: a disk that is made meanwhile has one when it is looked for.
    let unreadable = disks.unreadable()?;
    let unreadable = unreadable.iter().map(|one| {
        let allocated = one.vm.map_or(0, |vm| disks.allocated(vm));
        wire::unreadable_disk(one, allocated)
    });
    let all = disks.all().into_iter();
    let all = all.map(|one| {
        let manifest = disks.manifest_summary(one.vm);
        let disk = wire::disk(&one, disks.allocated(one.vm), &disks.snapshots(&one));
        wire::with_manifest(disk, manifest)
    });
    Ok(all.chain(unreadable).collect())
}
