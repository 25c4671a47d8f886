//! What fails with backups.
//!
//! Invariant: the text says what failed, and what to do where a user can do something.
//! Failure: see the variants.

use std::path::PathBuf;

use podspec::VmUid;

use crate::files;

/// A request about a backup that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No target has the name.
    #[error(
        "the node has no backup target {0}: add it to backup.targets in the configuration of the daemon, or use a target \
         that the node has"
    )]
    NoTarget(String),
    /// No pod has the claim mounted.
    #[error(
        "no pod of namespace {namespace} on this node has claim {claim} mounted for backups: the controller makes one; find \
         out whether the claim exists, and whether this node can mount it"
    )]
    NotMounted {
        /// UID of the claim.
        claim: uuid::Uuid,
        /// That of the machine.
        namespace: String,
    },
    /// The mount of a claim is gone, or its path leads elsewhere.
    #[error(
        "{} is no mount, or a link is on the way: the claim is not mounted, or no longer",
        .0.display()
    )]
    NoMount(PathBuf),
    /// The target does not answer.
    #[error(
        "backup target {0} did not answer within {seconds} s: check its server, or its mount on the node",
        seconds = super::DEADLINE.as_secs()
    )]
    Hung(String),
    /// Other claims take all threads.
    #[error(
        "backup target {0} was not reached within {seconds} s: other claims of this node do not answer, and take all its \
         threads for claims; check the servers of these",
        seconds = super::DEADLINE.as_secs()
    )]
    Crowded(String),
    /// The daemon stops.
    #[error("failed to reach the backup target: {0}")]
    Aborted(String),
    /// The kernel refused.
    #[error(transparent)]
    Files(#[from] files::Error),
    /// Something else is in the place of a file or a directory.
    #[error(
        "{} in a backup target is a link, or no plain file, and is not opened: find out who writes to the target, and \
         remove it",
        .0.display()
    )]
    NotPlain(PathBuf),
    /// A file is longer than it was a moment ago.
    #[error("{} grows while it is read: find out who writes to it", .0.display())]
    Grown(PathBuf),
    /// The server of a bucket does not do it.
    #[error("failed to {step} {object} in backup target {target}: {reason}")]
    Bucket {
        /// The target.
        target: String,
        /// What was to be done.
        step: &'static str,
        /// With which object.
        object: String,
        /// What the server answered, or why it was not reached.
        reason: String,
    },
    /// A bucket takes no object of this length in parts of a size that the node can have in memory.
    #[error(
        "a file of the disk has {bytes} bytes, which is more than the bucket of backup target {target} takes: use a target \
         that is a directory"
    )]
    Large {
        /// The target.
        target: String,
        /// Length of the file.
        bytes: u64,
    },
    /// There is no such backup.
    #[error("backup {backup} is not in target {target}")]
    Absent {
        /// The backup.
        backup: VmUid,
        /// Where it was looked for.
        target: String,
    },
    /// There is no backup of the machine at all: the target may be another place than it was.
    #[error("target {target} has nothing of machine {vm}: check its mount on the node")]
    Empty {
        /// The machine.
        vm: VmUid,
        /// Where it was looked for.
        target: String,
    },
    /// The record of the disk does not know it.
    #[error("the node has no record that it wrote backup {0}")]
    Unknown(VmUid),
    /// Its manifest cannot be used.
    #[error("failed to use the manifest of backup {backup} in target {target}: {reason}")]
    Manifest {
        /// The backup.
        backup: VmUid,
        /// Where it is.
        target: String,
        /// Why.
        reason: String,
    },
    /// What is in the target is not what was written.
    #[error("file {file} of backup {backup} in target {target} is not what was written: {reason}")]
    Spoiled {
        /// The backup.
        backup: VmUid,
        /// Where it is.
        target: String,
        /// Its file.
        file: String,
        /// How it differs.
        reason: String,
    },
    /// It is of a machine of another namespace.
    #[error(
        "backup {backup} is that of machine {had}, and {requested} is of another namespace: use a backup of the same \
         namespace"
    )]
    OtherNamespace {
        /// The backup.
        backup: VmUid,
        /// `namespace/name` of its machine.
        had: String,
        /// The machine of the request.
        requested: String,
    },
    /// What a backup is based on was removed while it was written.
    #[error(
        "backup {0} was removed while another one was written that is based on it: the next attempt does without"
    )]
    ParentRemoved(VmUid),
    /// Another backup is based on it.
    #[error("failed to delete backup {backup}: backup {child} is based on it; delete that first")]
    Needed {
        /// The backup.
        backup: VmUid,
        /// The other one.
        child: VmUid,
    },
}

/// Outcome of a request about a backup.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether the same request may succeed later without a change of the target by a user.
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::NoTarget(_) | Self::Hung(_) | Self::Crowded(_) => true,
            Self::Aborted(_) | Self::Files(_) => true,
            Self::Bucket { .. } | Self::NotMounted { .. } | Self::NoMount(_) => true,
            Self::Needed { .. } | Self::ParentRemoved(_) | Self::Empty { .. } => true,
            Self::NotPlain(_) | Self::Grown(_) | Self::Unknown(_) | Self::Large { .. } => false,
            Self::Absent { .. } | Self::Manifest { .. } => false,
            Self::Spoiled { .. } | Self::OtherNamespace { .. } => false,
        }
    }
}
