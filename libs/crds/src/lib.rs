//! The kinds of `vmlet.dev/v1alpha1`: types, schemas and validation rules.
//!
//! Invariant: these types are the only source of the schemas in `deploy/crds/`; a field that a user may
//! set is documented where it is declared.
//! Failure: what a schema or rule forbids is refused by the API server with the sentence given here.

#![allow(
    unreachable_pub,
    reason = "KubeSchema repeats each struct inside a function, with its visibility"
)]

mod class;
pub mod conditions;
pub mod names;
mod task;
pub mod vm;

pub use class::{
    ClassHardware, ClassPolicies, ClassResources, ResourceList, VirtualMachineClass,
    VirtualMachineClassSpec,
};
pub use task::{
    TaskKind, TaskState, VirtualMachineTask, VirtualMachineTaskSpec, VirtualMachineTaskStatus,
};
pub use vm::{PowerState, RunStrategy, VirtualMachine, VirtualMachineSpec, VirtualMachineStatus};

/// The API group of every kind.
pub const GROUP: &str = "vmlet.dev";
/// The served and stored version.
pub const VERSION: &str = "v1alpha1";
