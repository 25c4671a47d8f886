//! Why a pod has no place for another container.
//!
//! Invariant: the text names the pod or the sandbox, and what its containers may be.
//! Failure: see the variants; nothing of the refused container is left.

use podspec::{ContainerId, SandboxId};

use crate::vm::state::Phase;

/// A container that another one, or the kind of its pod, stands in the way of.
#[derive(Debug, thiserror::Error)]
pub enum Conflict {
    /// The sandbox has a machine already.
    #[error(
        "pod {pod} has a virtual machine already, container {name} ({phase}): a pod has one \
         container; several are processes of one machine in a pod with the RuntimeClass \
         vmlet-process"
    )]
    Live {
        /// Namespace and name of the pod.
        pod: String,
        /// The name of the container that is there.
        name: String,
        /// Its id.
        container: ContainerId,
        /// Where it is in its life.
        phase: Phase,
    },
    /// The sandbox had a machine of another name.
    #[error(
        "container {name} cannot boot the disk of pod {pod}, whose virtual machine is container \
         {machine}: a pod has one container and no init containers; several are processes of one \
         machine in a pod with the RuntimeClass vmlet-process"
    )]
    OtherName {
        /// Namespace and name of the pod.
        pod: String,
        /// The name of the container that is refused.
        name: String,
        /// The name of the container that was there first.
        machine: String,
    },
    /// Another container of the pod has the name.
    #[error(
        "container {name} of attempt {attempt} exists already, as {container}: remove it, or \
         request another attempt"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// The attempt.
        attempt: u32,
        /// The container that has it.
        container: ContainerId,
    },
    /// All processes of a pod run in one machine, which boots one image.
    #[error(
        "image {image} is not the one that the machine of sandbox {sandbox} boots: containers of \
         a pod with the handler vmlet-process have the same image"
    )]
    OtherImage {
        /// The sandbox.
        sandbox: SandboxId,
        /// The image of the request.
        image: String,
    },
    /// The machine of a VirtualMachine object is the container of its pod.
    #[error(
        "sandbox {0} runs a VirtualMachine object, whose container is the machine: use the handler \
         vmlet, not vmlet-process"
    )]
    VmOfProcesses(SandboxId),
}
