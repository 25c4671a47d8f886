//! Requests that reach into a running machine.
//!
//! Invariant: a command that nobody waits for any more is killed: the request's end is its end.
//! Failure: statuses from [`status`](crate::cri::status); streams are refused with what serves instead.

use cri_proto::v1;
use tonic::Status;

use super::Runtime;
use crate::cri::convert;

const NO_EXEC: &str = "interactive commands in a virtual machine are not available: use vmletctl console on the node \
                       for a terminal, or crictl exec -s for a single command";
const NO_ATTACH: &str = "attaching to a virtual machine is not available: use kubectl logs -f to read its console, or \
                         vmletctl console on the node to type there";
const NO_PORT_FORWARD: &str = "port forwarding to a virtual machine is not available: connect to the pod's IP \
                               address, or expose the port by a Service";

impl Runtime {
    pub(super) async fn exec_sync(
        &self,
        request: v1::ExecSyncRequest,
    ) -> Result<v1::ExecSyncResponse, Status> {
        let command = convert::exec::command(request.cmd)?;
        let timeout = convert::exec::timeout(request.timeout);
        let container = self.container(&request.container_id)?;
        let ended = self.app.containers.exec(&container.id, command, timeout);
        Ok(convert::exec::response(ended.await?))
    }

    pub(super) async fn exec(&self, _: v1::ExecRequest) -> Result<v1::ExecResponse, Status> {
        Err(Status::unimplemented(NO_EXEC))
    }

    pub(super) async fn attach(&self, _: v1::AttachRequest) -> Result<v1::AttachResponse, Status> {
        Err(Status::unimplemented(NO_ATTACH))
    }

    pub(super) async fn port_forward(
        &self,
        _: v1::PortForwardRequest,
    ) -> Result<v1::PortForwardResponse, Status> {
        Err(Status::unimplemented(NO_PORT_FORWARD))
    }
}
