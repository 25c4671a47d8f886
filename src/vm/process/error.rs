//! The errors of a machine that is to run processes.
//!
//! Invariant: the text says what the processes of a pod need.
//! Failure: see the variants.

use std::time::Duration;

use podspec::SandboxId;

/// A pod machine that runs no processes.
#[derive(Debug, thiserror::Error)]
pub enum PodMachineError {
    /// The machine that a process needs does not run.
    #[error("the machine of sandbox {0} does not run: create the container again")]
    Gone(SandboxId),
    /// The guest boots no `vmlet-guest`.
    #[error(
        "vmlet-guest in the machine of sandbox {0} does not answer within {n} s: containers of a \
         pod with the handler vmlet-process need it in the image", n = .1.as_secs()
    )]
    Silent(SandboxId, Duration),
    /// The pod leaves the port of `vmlet-guest` out.
    #[error(
        "sandbox {0} has the annotation vmlet.dev/guest-agent: off, and vmlet-guest runs the \
         containers of a pod with the handler vmlet-process: remove the annotation"
    )]
    PortOff(SandboxId),
}
