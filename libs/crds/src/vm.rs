//! `VirtualMachine`: a machine that keeps its disk, its identity and its desired state.
//!
//! Invariant: exactly one of `powerState`, `runStrategy` and `running` states what its owner wants.
//! Failure: a forbidden edit is refused by the API server; what cannot be done shows as a
//! condition.

mod bootstrap;
pub mod fields;
mod firmware;
mod network;
mod probe;
mod requests;
mod rules;
mod source;
mod spec;
mod status;
mod volumes;

pub use bootstrap::{Bootstrap, CloudInit, SecretKeyRef};
pub use firmware::Firmware;
pub use network::{InterfaceSpec, NetworkSpec};
pub use probe::{
    GuestInfoMatch, HeartbeatProbe, HeartbeatThreshold, ReadinessProbe, TcpSocketProbe,
};
pub use requests::{StateChangeAction, StateChangeRequest};
pub use source::{CloneSource, SourceReference};
pub use spec::{
    Affinity, ImageRef, InlineHardware, PowerOpMode, PowerState, PromoteDisksMode, RunStrategy,
    Template, TemplateMetadata, VirtualMachine, VirtualMachineSpec,
};
pub use status::{
    Afterwards, GuestStatus, HardwareStatus, InstanceStatus, InterfaceStatus, NetworkConfigStatus,
    NetworkStatus, PrintableStatus, ProviderStatus, RevertPhase, SnapshotRevert, StartFailure,
    StorageStatus, VirtualMachineStatus, VolumeStatus,
};
pub(crate) use volumes::any_object;
pub use volumes::{DataVolumeTemplate, Volume, VolumeClaim};
