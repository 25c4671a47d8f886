//! Records that machines of earlier versions lack.
//!
//! ```text
//! other build or schema ─► both recorded ─► next pass: what is missing is recorded ─► (nothing)
//! ```
//!
//! Invariant: a machine is written at most twice after an upgrade, and not at all by later passes; a machine that
//! starts for the first time gets its records with the write that says so. Features that a later version has
//! recorded stay: an earlier one does not know whether they are there.
//! Failure: none of its own; a user who deletes the annotations has them made again.

use crds::backup::DiskRecord;
use crds::names;
use kube::ResourceExt;
use lifecycle::Action;

use crate::reconcile::vm::pass::Pass;

/// Version of the schema.
const SCHEMA: &str = "v1alpha1";
/// Version of this program.
const BUILD: &str = env!("CARGO_PKG_VERSION");

/// A record that machines of earlier versions lack.
struct Feature {
    bit: u64,
    /// Makes it, or makes it again where it is not what it should be.
    fill: fn(&mut Pass<'_>),
}

/// All of them. A bit is never used for another one.
const FEATURES: [Feature; 1] = [Feature {
    bit: 1,
    fill: record_disk,
}];

/// Records the versions by which a machine is made that is new.
pub(crate) fn begin(pass: &mut Pass<'_>) {
    if pass.is_created() || pass.seen().is_some() {
        return;
    }
    let annotations = pass.vm.annotations_mut();
    for (key, value) in [
        (names::CREATED_AT_BUILD, BUILD),
        (names::CREATED_AT_SCHEMA, SCHEMA),
        (names::UPGRADED_TO_BUILD, BUILD),
        (names::UPGRADED_TO_SCHEMA, SCHEMA),
    ] {
        annotations.insert(key.to_owned(), value.to_owned());
    }
}

/// One step of an upgrade. The pass goes on: a power-off does not wait for it.
pub(crate) fn run(pass: &mut Pass<'_>, action: &Action) {
    drop_request(pass);
    let is_current = |(key, value): &(&str, &str)| {
        let found = pass.vm.annotations().get(*key);
        found.is_some_and(|found| found == value)
    };
    let versions = [
        (names::UPGRADED_TO_BUILD, BUILD),
        (names::UPGRADED_TO_SCHEMA, SCHEMA),
    ];
    if !versions.iter().all(is_current) {
        let versions = versions.map(|(key, value)| (key.to_owned(), value.to_owned()));
        pass.vm.annotations_mut().extend(versions);
        return;
    }
    let is_first_start =
        matches!(action, Action::Create { .. }) && !pass.has(names::FIRST_BOOT_DONE);
    if !is_first_start {
        fill(pass);
    }
}

/// The machine has its disk: the request to take one over is fulfilled, or came too late.
fn drop_request(pass: &mut Pass<'_>) {
    let request = pass.vm.annotations_mut().remove(names::ADOPT_DISK);
    let record = pass.vm.annotations().get(names::DISK_RECORD);
    let record = request.and_then(|_| DiskRecord::from_json(record?).ok());
    let disk = pass.disk_uid();
    if let Some(other) = record.filter(|record| record.disk != disk) {
        let text = format!(
            "the machine has disk {disk}, and does not take over disk {} of node {}: to recover that one, \
             delete the machine and create it again with the annotations",
            other.disk, other.node
        );
        pass.warning("DiskNotAdopted", &text);
    }
}

/// Makes what is missing.
pub(crate) fn fill(pass: &mut Pass<'_>) {
    for feature in &FEATURES {
        (feature.fill)(pass);
    }
    let key = names::UPGRADED_TO_FEATURE;
    let had = pass.vm.annotations().get(key);
    let had = had.and_then(|text| text.parse::<u64>().ok());
    let all = FEATURES.iter().fold(0, |all, feature| all | feature.bit);
    let has = had.unwrap_or_default() | all;
    if had != Some(has) {
        let annotations = pass.vm.annotations_mut();
        annotations.insert(key.to_owned(), has.to_string());
    }
}

/// Which disk the machine has: it is on the object, so that a copy of the object can find the disk.
fn record_disk(pass: &mut Pass<'_>) {
    let status = pass.seen().cloned().unwrap_or_default();
    let record = DiskRecord::of_machine(&pass.vm.metadata, &status);
    let Some(record) = record.filter(|_| pass.is_created() && pass.root_claim().is_none()) else {
        return;
    };
    let annotations = pass.vm.annotations_mut();
    annotations.insert(names::DISK_RECORD.to_owned(), record.to_json());
}
