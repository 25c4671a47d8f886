//! Maps domain errors to gRPC statuses; no other module does.
//!
//! Invariant: a message is the whole chain of causes on one bounded line, as kubelet shows it in
//! events; codes are those that kubelet and crictl act on.
//! Failure: none; what fits no other code is `Internal`.

use std::error::Error as StdError;

use libvirt::Error as Libvirt;
use service::telemetry::{bounded, one_line};
use tapmanager::client::Error as Network;
use tapmanager::wire::ErrorCode;
use tonic::{Code, Status};

use super::convert::Invalid;
use crate::events::Ended;
use crate::metadata::{self, LookupError};
use crate::vm::{Conflict, ShareError, file_disks};
use crate::{block, disk, guest, images, pods, sources, vm};

/// What the kernel, SQLite and programs such as `qemu-img` report about a full disk; some give text
/// only.
const DISK_FULL: [&str; 4] = [
    "the node's disk budget of",
    "No space left on device",
    "Disk quota exceeded",
    "database or disk is full",
];

/// What kubelet looks for at the beginning of a failed pull, and shows as the waiting reason.
const REGISTRY_UNAVAILABLE: &str = "RegistryUnavailable";

impl From<Invalid> for Status {
    fn from(error: Invalid) -> Self {
        status(Code::InvalidArgument, &error)
    }
}

impl From<LookupError> for Status {
    fn from(error: LookupError) -> Self {
        let code = match error {
            LookupError::NotFound { .. } => Code::NotFound,
            LookupError::Ambiguous { .. } => Code::InvalidArgument,
            LookupError::Unreadable(_) => Code::FailedPrecondition,
        };
        status(code, &error)
    }
}

impl From<pods::Error> for Status {
    fn from(error: pods::Error) -> Self {
        status(sandbox_code(&error), &error)
    }
}

impl From<vm::Error> for Status {
    fn from(error: vm::Error) -> Self {
        status(container_code(&error), &error)
    }
}

impl From<Ended> for Status {
    fn from(ended: Ended) -> Self {
        let code = match ended {
            Ended::TooSlow => Code::ResourceExhausted,
            Ended::Stopping => Code::Unavailable,
        };
        status(code, &ended)
    }
}

/// For images that are or should be in the store; a failed [`pull`] has another code.
impl From<images::Error> for Status {
    fn from(error: images::Error) -> Self {
        status(image_code(&error), &error)
    }
}

/// A failed pull. kubelet looks for a waiting reason at the beginning of the text, and puts the code
/// in front of it unless that is `Unknown`: with `Unavailable` it would not find its own
/// `RegistryUnavailable`. Errors of our own have no code that means something to it.
pub(super) fn pull(error: &images::Error) -> Status {
    use images::Error as E;
    let text = one_line(error);
    match error {
        E::Unavailable { .. }
        | E::Fetch { .. }
        | E::Stalled { .. }
        | E::Slow { .. }
        | E::Overdue { .. } => Status::unknown(bounded(&format!("{REGISTRY_UNAVAILABLE}: {text}"))),
        _ => match status(image_code(error), error) {
            status if status.code() == Code::Internal => Status::unknown(text),
            status => status,
        },
    }
}

fn sandbox_code(error: &pods::Error) -> Code {
    use pods::Error as E;
    match error {
        E::Exists { .. } => Code::AlreadyExists,
        E::Bandwidth(_) | E::Annotation(_) => Code::InvalidArgument,
        E::Phase { .. } | E::Unreadable(_) => Code::FailedPrecondition,
        E::Network { source, .. } | E::Networks(source) => network_code(source),
        E::Guests { source, .. } => container_code(source),
        E::Table(e) => table_code(e),
        E::Db(_) => Code::Internal,
        E::Aborted(_) => Code::Aborted,
    }
}

fn container_code(error: &vm::Error) -> Code {
    use vm::Error as E;
    match error {
        E::NoSandbox(_) | E::NoContainer(_) | E::ImageLost(_) => Code::NotFound,
        E::Placeholder(_)
        | E::NoLandlock
        | E::Firmware(_)
        | E::Unreadable(_)
        | E::SandboxNotReady(_)
        | E::Phase { .. }
        | E::Resize { .. }
        | E::MachineType { .. }
        | E::DomainLives { .. }
        | E::NotRunning(_)
        | E::Paused(_)
        | E::PodMachine(_)
        | E::RootNotOfNode(_) => Code::FailedPrecondition,
        E::Conflict(Conflict::NameTaken { .. }) => Code::AlreadyExists,
        E::Conflict(_) => Code::FailedPrecondition,
        E::Shares(e) => share_code(e),
        E::Stopped(_) => Code::Cancelled,
        E::VmDisk(e) => disk_code(e),
        E::Block(e) => block_code(e),
        E::FileDisk(e) => file_disk_code(e),
        E::GuestData(_)
        | E::Mount { .. }
        | E::Source(sources::Error::Refused { .. } | sources::Error::Mount { .. })
        | E::Seed(_) => Code::FailedPrecondition,
        E::Source(sources::Error::NobodyAnswered { .. }) => Code::Unavailable,
        E::Machine(_) | E::Unsupported(_) | E::Seccomp(_) => Code::InvalidArgument,
        E::Image(e) => image_code(e),
        E::Network { source, .. } => network_code(source),
        E::Hypervisor { source, .. } => libvirt_code(source),
        E::Exec(e) => exec_code(e),
        E::StillRunning(_) | E::Foreign(_) => Code::Unavailable,
        E::Users(_) => Code::ResourceExhausted,
        E::Table(e) => table_code(e),
        E::Aborted(_) => Code::Aborted,
        _ => Code::Internal,
    }
}

const fn share_code(error: &ShareError) -> Code {
    match error {
        ShareError::TooMany { .. }
        | ShareError::TooManyVolumes { .. }
        | ShareError::Volumes { .. }
        | ShareError::NotSaved(_) => Code::FailedPrecondition,
        ShareError::NinePOfProcesses => Code::InvalidArgument,
        ShareError::Directory { .. } => Code::Internal,
    }
}

/// kubelet takes `DeadlineExceeded` for a probe that failed, and any other error for one that did
/// not take place.
const fn exec_code(error: &vm::exec::Error) -> Code {
    use vm::exec::Error as E;
    match error {
        // A guest that hangs is what a liveness probe is there to find out.
        E::Timeout(_) | E::NotStarted(_) | E::Silent(_) => Code::DeadlineExceeded,
        E::NoAgent(_) | E::Forbidden(_) | E::NoShell(_) | E::Ended => Code::FailedPrecondition,
        E::NoCommand(_) => Code::InvalidArgument,
        E::Abandoned => Code::Cancelled,
        E::Budget(_) | E::Crowded | E::MachineCrowded => Code::ResourceExhausted,
        // Also when libvirt took too long: that says nothing about the guest.
        E::Hypervisor(_) | E::Fetch(_) => Code::Unavailable,
        E::Lost(_) => Code::Internal,
        E::Guest(e) => guest_code(e),
    }
}

const fn guest_code(error: &guest::Error) -> Code {
    use guest::Error as E;
    match error {
        E::NoCommand(_) => Code::InvalidArgument,
        E::Silent(_) | E::NoAnswer(_) => Code::DeadlineExceeded,
        E::Refused(_) | E::NoSession(_) | E::TooOld(_) => Code::FailedPrecondition,
        E::Lost => Code::Unavailable,
        E::Protocol => Code::Internal,
    }
}

const fn block_code(error: &block::Error) -> Code {
    use block::Error as E;
    match error {
        E::NotBlock(_) | E::ReadOnly | E::TwoRoots => Code::InvalidArgument,
        E::Busy(_) | E::Hung(_) => Code::Unavailable,
        E::Cancelled(_) | E::Stopped(_) => Code::Aborted,
        E::Write(_) | E::Files(_) | E::Db(_) => Code::Internal,
        _ => Code::FailedPrecondition,
    }
}

const fn file_disk_code(error: &file_disks::Error) -> Code {
    use file_disks::Error as E;
    match error {
        E::NoMount(_) | E::TwoDisks(_) | E::TwoRoots | E::ReadOnlyRoot | E::Process => {
            Code::InvalidArgument
        }
        E::InUse(_) | E::Foreign { .. } => Code::Unavailable,
        E::Cancelled(_) => Code::Aborted,
        E::Write { .. } | E::Io { .. } => Code::Internal,
        _ => Code::FailedPrecondition,
    }
}

const fn disk_code(error: &disk::Error) -> Code {
    use disk::Error as E;
    match error {
        E::Files(_) | E::Db(_) | E::Write(_) | E::Image { .. } => Code::Internal,
        _ => Code::FailedPrecondition,
    }
}

fn image_code(error: &images::Error) -> Code {
    use images::Error as E;
    match error {
        E::InvalidName { .. } => Code::InvalidArgument,
        E::Absent { .. } | E::NotFound { .. } | E::Vanished { .. } | E::Uploaded { .. } => {
            Code::NotFound
        }
        E::Refused { code: 401, .. } => Code::Unauthenticated,
        E::Refused { code: 403, .. } | E::Address { .. } => Code::PermissionDenied,
        E::NoSpace { .. } | E::Crowded { .. } => Code::ResourceExhausted,
        E::Interrupted(_) | E::Stopping => Code::Aborted,
        passing if passing.is_passing() => Code::Unavailable,
        _ => Code::Internal,
    }
}

fn network_code(error: &Network) -> Code {
    match error {
        Network::Unreachable { .. } => Code::Unavailable,
        Network::Deadline { .. } => Code::DeadlineExceeded,
        Network::Refused(refusal) => match refusal.code {
            ErrorCode::Invalid => Code::InvalidArgument,
            // The sandbox is there, and its network is not any more.
            ErrorCode::NotFound => Code::FailedPrecondition,
            ErrorCode::NotReady => Code::Unavailable,
            ErrorCode::Timeout => Code::DeadlineExceeded,
            _ => Code::Internal,
        },
        _ => Code::Internal,
    }
}

const fn libvirt_code(error: &Libvirt) -> Code {
    match error {
        Libvirt::Unavailable { .. } | Libvirt::Busy { .. } => Code::Unavailable,
        Libvirt::Deadline { .. } => Code::DeadlineExceeded,
        _ => Code::Internal,
    }
}

const fn table_code(error: &metadata::TableError) -> Code {
    match error {
        metadata::TableError::Raced { .. } => Code::Aborted,
        metadata::TableError::Db(_) => Code::Internal,
    }
}

fn status(code: Code, error: &dyn StdError) -> Status {
    let text = one_line(error);
    let full = code == Code::Internal && DISK_FULL.iter().any(|words| text.contains(words));
    Status::new(if full { Code::ResourceExhausted } else { code }, text)
}

#[cfg(test)]
mod tests;
