//! What a domain is, what it does, and what can be done to it.
//!
//! Invariant: plain values.
//! Failure: none.

use uuid::Uuid;

/// How to request a guest to power off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// By the QEMU guest agent.
    Agent,
    /// By the ACPI power button.
    Acpi,
}

/// Whether a NIC has a carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cable {
    /// It has none.
    Pulled,
    /// It has one.
    PluggedIn,
}

/// What a domain is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The emulator runs: running, paused, shutting down.
    Active,
    /// No emulator; the reason of its end, if it ever ran.
    Inactive(End),
}

/// Whether a guest runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Power {
    /// There is no emulator.
    Off,
    /// The guest runs.
    On,
    /// There is an emulator, and the guest does not run.
    Paused(Pause),
}

/// Why a guest does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// A client requested it.
    Asked,
    /// Its disk failed.
    IoError,
    /// Its memory is being saved, or something else that ends by itself.
    Passing,
}

/// A disk that failed, for which the emulator pauses its guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedDisk {
    /// Its name in the domain, such as `vda`.
    pub name: String,
    /// What it lacks.
    pub cause: DiskFailure,
}

/// Why a disk failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFailure {
    /// What it lies on is full.
    NoSpace,
    /// Anything else.
    Other,
}

impl std::fmt::Display for FailedDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cause = match self.cause {
            DiskFailure::NoSpace => "no space left",
            DiskFailure::Other => "I/O error",
        };
        write!(f, "disk {}: {cause}", self.name)
    }
}

/// Why an emulator ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The guest powered itself off.
    GuestShutdown,
    /// A client destroyed the domain.
    Destroyed,
    /// The guest crashed or the emulator ended.
    Crashed,
    /// Its memory was saved.
    Saved,
    /// It failed to start, or how it ended is not known.
    Unknown,
}

/// A domain of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DomainInfo {
    /// Its UUID.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// What it is doing.
    pub state: State,
    /// The attribute `container` of our metadata element.
    pub container: String,
    /// The attribute `installation`: who made it. Earlier versions did not say.
    pub installation: Option<String>,
    /// The attribute `vm`: the machine whose disk it has open.
    pub vm: Option<String>,
}

/// What a running domain has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DomainStats {
    /// Its UUID.
    pub domain: Uuid,
    /// CPU time of the emulator with all its threads, in nanoseconds since its start, if libvirt
    /// knows it.
    pub cpu_nanoseconds: Option<u64>,
}
