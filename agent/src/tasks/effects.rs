//! Executes the steps of a task: calls to the daemon, writes to the API server.
//!
//! Invariant: every effect can be repeated, has a deadline, and says in the end what is known now.
//! Failure: [`Done::Failed`] for what may go better later; [`Done::Refused`] for what never will.

use std::time::Duration;

use crds::{VirtualMachineTask, VirtualMachineTaskStatus};
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use nodeapi::v1::{CancelTaskRequest, ForgetTaskRequest, RunTaskRequest, TaskStatus};
use serde_json::json;
use service::telemetry;
use tonic::Code;

use super::FIELD_MANAGER;
use super::decide::Next;
use super::object::{Object, is_final};
use super::owner;
use crate::daemon::{Daemon, status_message};

/// Longest wait for the API server in one call.
const API: Duration = Duration::from_secs(15);

/// Both sides of an effect.
#[derive(Clone)]
pub(super) struct Effects {
    pub(super) client: kube::Client,
    pub(super) daemon: Daemon,
}

/// What an effect has shown.
#[derive(Debug)]
pub(super) enum Done {
    /// The state of the task in the daemon.
    Stands(TaskStatus),
    /// The daemon was requested to stop it, and its state.
    Cancelling(TaskStatus),
    /// The daemon does not know it.
    Unknown,
    /// The daemon will never run it.
    Refused(String),
    /// The status is in the API server.
    Recorded(Box<VirtualMachineTaskStatus>),
    /// The API server does not have the object any more.
    Vanished,
    /// The next attempt may succeed.
    Failed(String),
}

impl Effects {
    /// Does one step for a task.
    pub(super) async fn perform(self, uid: &str, object: Option<&Object>, next: Next) -> Done {
        match (next, object) {
            (Next::Run(request), Some(object)) => {
                match owner::refusal(&self.client, object).await {
                    Ok(None) => self.run(*request).await,
                    Ok(Some(sentence)) => Done::Refused(sentence),
                    Err(error) => Done::Failed(format!("failed to read the machine: {error}")),
                }
            }
            (Next::Cancel, _) => self.cancel(uid).await,
            (Next::Forget, _) => self.forget(uid).await,
            (Next::Record(status), Some(object)) => self.record(object, *status).await,
            (Next::Delete, Some(object)) => self.delete(object).await,
            (next, _) => Done::Failed(format!("{next:?} is no effect")),
        }
    }

    async fn run(mut self, request: RunTaskRequest) -> Done {
        faultpoint::point("agent.task.run");
        let ran = self.daemon.run_task(request).await;
        faultpoint::point("agent.task.ran");
        match ran {
            Ok(status) => Done::Stands(status.into_inner()),
            Err(status) => match status.code() {
                Code::InvalidArgument | Code::Unimplemented | Code::OutOfRange => {
                    let message = crds::text::printable(status.message(), 512);
                    Done::Refused(format!("the daemon refuses this task: {message}"))
                }
                _ => Done::Failed(status_message(&status)),
            },
        }
    }

    async fn cancel(mut self, uid: &str) -> Done {
        let uid = uid.to_owned();
        faultpoint::point("agent.task.cancel");
        match self.daemon.cancel_task(CancelTaskRequest { uid }).await {
            Ok(status) => Done::Cancelling(status.into_inner()),
            Err(status) if status.code() == Code::NotFound => Done::Unknown,
            Err(status) => Done::Failed(status_message(&status)),
        }
    }

    async fn forget(mut self, uid: &str) -> Done {
        let uid = uid.to_owned();
        faultpoint::point("agent.task.forget");
        let forgot = self.daemon.forget_task(ForgetTaskRequest { uid }).await;
        faultpoint::point("agent.task.forgot");
        match forgot {
            Ok(_) => Done::Unknown,
            Err(status) => Done::Failed(status_message(&status)),
        }
    }

    async fn record(self, object: &Object, status: VirtualMachineTaskStatus) -> Done {
        let ends = is_final(&status);
        if ends {
            faultpoint::point("agent.task.record");
        } else {
            faultpoint::point("agent.task.progress");
        }
        // The uid keeps this from another object of the same name.
        let patch = json!({
            "apiVersion": "vmlet.dev/v1alpha1",
            "kind": "VirtualMachineTask",
            "metadata": { "name": object.name, "uid": object.uid },
            "status": status,
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let api: Api<VirtualMachineTask> = Api::namespaced(self.client, &object.namespace);
        let patch = Patch::Apply(&patch);
        let written = tokio::time::timeout(API, api.patch_status(&object.name, &params, &patch));
        let done = match written.await {
            Ok(Ok(_)) => Done::Recorded(Box::new(status)),
            Ok(Err(e)) => failed(&e),
            Err(_) => Done::Failed("the API server did not answer in time".to_owned()),
        };
        if ends {
            faultpoint::point("agent.task.recorded");
        }
        done
    }

    async fn delete(self, object: &Object) -> Done {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(object.uid.clone()),
                resource_version: None,
            }),
            ..DeleteParams::background()
        };
        let api: Api<VirtualMachineTask> = Api::namespaced(self.client, &object.namespace);
        faultpoint::point("agent.task.delete");
        let deleted = tokio::time::timeout(API, api.delete(&object.name, &params));
        match deleted.await {
            Ok(Ok(_)) => Done::Vanished,
            Ok(Err(e)) => failed(&e),
            Err(_) => Done::Failed("the API server did not answer in time".to_owned()),
        }
    }
}

/// 404: it no longer exists. 409: another one has its name, since nothing else is a condition of
/// these writes.
fn failed(error: &kube::Error) -> Done {
    match error {
        kube::Error::Api(status) if matches!(status.code, 404 | 409) => Done::Vanished,
        error => Done::Failed(telemetry::one_line(error)),
    }
}
