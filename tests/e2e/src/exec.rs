//! Commands in guests, as kubelet's exec probes send them.
//!
//! Invariant: what a guest answers is passed on byte for byte.
//! Failure: the daemon's gRPC status, untouched.

use std::time::Duration;

use anyhow::{Result, ensure};
use tonic::Status;

use crate::Cri;
use crate::v1::{ExecSyncRequest, ExecSyncResponse};
use crate::wait::eventually;

impl Cri {
    /// Runs a command in a container; a time-out of 0 seconds is none.
    pub async fn exec(
        &self,
        id: &str,
        command: &[&str],
        timeout: i64,
    ) -> Result<ExecSyncResponse, Status> {
        let request = ExecSyncRequest {
            container_id: id.to_owned(),
            cmd: command.iter().map(|word| (*word).to_owned()).collect(),
            timeout,
        };
        let answer = self.runtime.clone().exec_sync(request).await?;
        Ok(answer.into_inner())
    }

    /// Runs a line of shell that must succeed, and returns what it wrote without the last line's
    /// end.
    pub async fn shell(&self, id: &str, line: &str) -> Result<String> {
        let answer = self.exec(id, &["sh", "-c", line], 60).await?;
        let err = String::from_utf8_lossy(&answer.stderr).into_owned();
        ensure!(answer.exit_code == 0, "{line}: {}: {err}", answer.exit_code);
        Ok(String::from_utf8(answer.stdout)?.trim_end().to_owned())
    }

    /// Waits until the guest's agent takes commands.
    pub async fn await_agent(&self, id: &str) -> Result<()> {
        let within = Duration::from_secs(600);
        eventually(within, "a guest that takes commands", || async {
            self.shell(id, "true").await.map(drop)
        })
        .await
    }
}
