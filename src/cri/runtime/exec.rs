//! Requests for commands in a running machine.
//!
//! Invariant: a command whose caller has disconnected is killed: the end of the request is its end.
//! Failure: statuses from [`status`](crate::cri::status).

use cri_proto::v1;
use tonic::Status;

use super::Runtime;
use crate::cri::convert;

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
}
