//! Whether the machine that a task was made for is the one that exists.
//!
//! A backup tool restores the objects of tasks without their statuses, and each would run again:
//! long after its time, and for a machine that may have gone.
//!
//! Invariant: a task that destroys or makes data is run only after the API server has shown its
//! machine. One that names no machine's UID was made by an administrator, and runs.
//! Failure: an answer that is missing; the task waits.

use std::time::Duration;

use crds::{TaskKind, VirtualMachine, VirtualMachineTaskSpec};
use kube::{Api, Client};
use service::telemetry::one_line;
use tokio::time::timeout;

use super::object::Object;

/// Longest wait for an answer.
const ANSWER: Duration = Duration::from_secs(15);

/// Why the task is not to be run, if so.
pub(super) async fn refusal(client: &Client, object: &Object) -> Result<Option<String>, String> {
    let Ok(spec) = &object.spec else {
        return Ok(None);
    };
    let Some(machine) = object.machine.as_deref().filter(|_| is_about_data(spec)) else {
        return Ok(None);
    };
    let namespace = spec.vm_namespace.as_ref().unwrap_or(&object.namespace);
    let api: Api<VirtualMachine> = Api::namespaced(client.clone(), namespace);
    let found = match timeout(ANSWER, api.get_metadata_opt(&spec.vm_name)).await {
        Ok(found) => found.map_err(|error| one_line(&error))?,
        Err(_) => return Err("the API server did not answer in time".to_owned()),
    };
    let uid = found.and_then(|found| found.metadata.uid);
    Ok((uid.as_deref() != Some(machine)).then(|| {
        format!(
            "this task is of a virtual machine {namespace}/{} with UID {machine}, which does not exist \
             any more: delete the task",
            spec.vm_name
        )
    }))
}

/// Whether a repetition of the task loses data.
const fn is_about_data(spec: &VirtualMachineTaskSpec) -> bool {
    matches!(
        spec.kind,
        TaskKind::Provision
            | TaskKind::CloneDisk
            | TaskKind::RestoreBackup
            | TaskKind::DeleteDisk
            | TaskKind::Revert
            | TaskKind::DeleteSnapshot
    )
}

#[cfg(test)]
mod tests;
