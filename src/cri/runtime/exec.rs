//! Requests for commands in a running machine, and for its console.
//!
//! Invariant: a command whose caller has disconnected is killed: the end of the request, or of the
//! session, is its end.
//! Failure: statuses from [`status`](crate::cri::status).

use std::time::Duration;

use cri_proto::v1;
use tonic::Status;

use super::Pods;
use crate::cri::convert;
use crate::platform::Platform;
use crate::streaming::{AttachTarget, ExecTarget, Pod, Target, Wanted};
use crate::vm::Container;

/// Time for `vmlet-guest` to answer a new connection before the QEMU guest agent serves, whose
/// output comes at the end only. The connection is made when the machine, or the daemon, starts.
const FIRST_ANSWER: Duration = Duration::from_secs(10);
/// Time for `vmlet-guest` to answer a new connection, when nothing else serves.
const INTERACTIVE: Duration = Duration::from_secs(20);

impl<P: Platform> Pods<P> {
    pub(super) async fn exec_sync(
        &self,
        request: v1::ExecSyncRequest,
    ) -> Result<v1::ExecSyncResponse, Status> {
        let command = convert::exec::command(request.cmd)?;
        let timeout = convert::exec::timeout(request.timeout);
        let container = self.container(&request.container_id)?;
        let ended = self.containers.exec(&container.id, command, timeout);
        Ok(convert::exec::response(ended.await?))
    }

    pub(super) async fn exec(&self, request: v1::ExecRequest) -> Result<v1::ExecResponse, Status> {
        let command = convert::exec::command(request.cmd)?;
        let streams = checked(Wanted {
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr,
            resize: request.tty,
        })?;
        let container = self.container(&request.container_id)?;
        let needs_agent = request.tty || request.stdin;
        let limit = if needs_agent {
            INTERACTIVE
        } else {
            FIRST_ANSWER
        };
        let agent = self.containers.guest_agent(&container.id, limit);
        if agent.await?.is_none() && needs_agent {
            let what = if request.tty {
                "a terminal"
            } else {
                "standard input"
            };
            return Err(Status::failed_precondition(format!(
                "{what} is not available: it needs vmlet-guest in the virtual machine, which does \
                 not answer, and the QEMU guest agent runs commands without it. Install and start \
                 vmlet-guest in the guest, or omit -i and -t"
            )));
        }
        let target = ExecTarget {
            container: container.id.clone(),
            command,
            streams,
        };
        let url = self.url(self.pod_of(&container), Target::Exec(target))?;
        Ok(v1::ExecResponse { url })
    }

    pub(super) async fn attach(
        &self,
        request: v1::AttachRequest,
    ) -> Result<v1::AttachResponse, Status> {
        let streams = checked(Wanted {
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr,
            resize: request.tty,
        })?;
        let container = self.container(&request.container_id)?;
        let target = AttachTarget {
            container: container.id.clone(),
            socket: self.containers.console_socket(&container.id)?,
            streams,
        };
        let url = self.url(self.pod_of(&container), Target::Attach(target))?;
        Ok(v1::AttachResponse { url })
    }

    fn pod_of(&self, container: &Container) -> Pod {
        Pod {
            namespace: self.containers.namespace(container),
            sandbox: container.sandbox.as_str().into(),
        }
    }

    pub(super) fn url(&self, pod: Pod, target: Target) -> Result<String, Status> {
        let url = self.gate.url(pod, target);
        url.map_err(|e| Status::resource_exhausted(e.to_string()))
    }
}

/// The streams of a request, if they make sense together.
fn checked(streams: Wanted) -> Result<Wanted, Status> {
    if streams.resize && streams.stderr {
        return Err(Status::invalid_argument(
            "stderr: a terminal has one output: set stderr to false",
        ));
    }
    if !(streams.stdin || streams.stdout || streams.stderr) {
        return Err(Status::invalid_argument(
            "stdout: at least one of stdin, stdout and stderr is needed",
        ));
    }
    Ok(streams)
}
