//! Who may fetch disks and bring images: root and the daemon's own user, and not the agent.
//!
//! Invariant: a client without credentials is refused.
//! Failure: `PERMISSION_DENIED`.

use nix::unistd::geteuid;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Status};

/// Refuses the user of the agent: it has no disks and makes no images, also when it was taken over.
#[allow(clippy::result_large_err, reason = "a call returns it")]
pub(in crate::node) fn refuse_agent<T>(request: &Request<T>) -> Result<(), Status> {
    let info = request.extensions().get::<UdsConnectInfo>();
    let user = info.and_then(|info| info.peer_cred).map(|peer| peer.uid());
    match user {
        Some(user) if user == 0 || user == geteuid().as_raw() => Ok(()),
        _ => Err(Status::permission_denied(
            "files are exchanged with root and the user of the daemon only",
        )),
    }
}
