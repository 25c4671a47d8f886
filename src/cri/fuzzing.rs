//! A request for a container, from the message to the status of what it makes.
//!
//! Invariant: messages pass the conversions that the server uses.
//! Failure: the status that a client would get.

use cri_proto::v1;
use podspec::{ContainerId, SandboxId, TAG};
use tonic::Status;

use super::convert;
use crate::sandbox::Sandbox;
use crate::sandbox::state::Phase;
use crate::vm;
use crate::vm::accelerator::Accelerator;

/// What two requests make.
#[derive(Debug)]
pub struct Created {
    /// The sandbox, as a client sees it.
    pub sandbox: v1::PodSandboxStatus,
    /// The container, as a client sees it.
    pub container: v1::ContainerStatus,
    /// The machine that the container is.
    pub machine: podspec::Machine,
    /// The domain, as libvirt gets it.
    pub domain: String,
}

/// Reads a request for a sandbox and one for a container in it.
///
/// # Errors
///
/// What a client would get.
pub fn create(
    sandbox: v1::RunPodSandboxRequest,
    container: Option<v1::ContainerConfig>,
    accelerator: Accelerator,
) -> Result<Created, Status> {
    let sandbox = Sandbox {
        id: id::<SandboxId>('5')?,
        phase: Phase::Ready,
        created_at: 0,
        config: convert::sandbox::config(sandbox)?,
        network: None,
    };
    if sandbox.config.has_processes()
        && let Some(process) = container.as_ref().map(convert::process::process)
    {
        process?;
    }
    let config = convert::container::config(container)?;
    let (row, domain) =
        vm::fuzzing::machine(id::<ContainerId>('c')?, &sandbox, config, accelerator)?;
    Ok(Created {
        sandbox: convert::sandbox::status(&sandbox),
        container: convert::container::status(&row, None),
        machine: row.spec.machine,
        domain,
    })
}

/// An id that consists of one digit.
fn id<I: std::str::FromStr>(digit: char) -> Result<I, Status> {
    let digits = format!("{}{TAG}", digit.to_string().repeat(64 - TAG.len()));
    let id = digits.parse();
    id.map_err(|_| Status::internal("an id has another form"))
}
