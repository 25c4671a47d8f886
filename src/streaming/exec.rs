//! A session of a command in a guest, run by the QEMU guest agent.
//!
//! Invariant: the command ends with its client: a session that breaks off kills it. The output
//! comes when the command has ended, since the agent has no streams.
//! Failure: reported on the error stream, as the protocol's version defines.

use std::sync::Arc;

use spdy::Session;

use super::ExecTarget;
use super::protocol;
use super::streams::{self, write};
use crate::app::Containers;

/// Runs the command of a session to its end.
pub(super) async fn run(
    mut session: Session,
    version: &'static str,
    target: ExecTarget,
    containers: Arc<Containers>,
) -> Result<(), String> {
    let mut streams = streams::awaited(&mut session, target.streams).await?;
    let command = containers.exec(&target.container, target.command, None);
    let ended = tokio::select! {
        ended = command => ended,
        // Dropping the command kills it.
        reason = streams::end(&mut session) => return Err(reason),
    };
    let outcome = match ended {
        Ok(output) => {
            write(streams.stdout.as_mut(), &output.out).await?;
            write(streams.stderr.as_mut(), &output.err).await?;
            Ok(output.code)
        }
        Err(error) => Err(crate::one_line(&error)),
    };
    let result = protocol::result(version, &outcome);
    write(streams.error.as_mut(), &result).await?;
    session.close().await.map_err(|e| crate::one_line(&e))
}
