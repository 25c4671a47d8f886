//! Commands in guests, as kubelet's exec probes send them.
//!
//! Invariant: what a guest answers is passed on byte for byte.
//! Failure: the daemon's gRPC status, untouched.

use std::time::Duration;

use anyhow::{Result, ensure};
use tonic::Status;

use crate::Cri;
use crate::v1::{ExecSyncRequest, ExecSyncResponse};
use crate::wait::{eventually, scaled};

/// For a command that ends by itself: long enough for the slowest step of any test.
const PATIENCE: Duration = Duration::from_secs(300);

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

    /// Runs a command that ends by itself.
    pub async fn command(&self, id: &str, command: &[&str]) -> Result<ExecSyncResponse, Status> {
        let within = scaled(PATIENCE).map_err(|error| Status::internal(format!("{error:#}")))?;
        let seconds = i64::try_from(within.as_secs()).unwrap_or(i64::MAX);
        self.exec(id, command, seconds).await
    }

    /// Runs a line of shell that must succeed, and returns what it wrote without the last line's
    /// end.
    pub async fn shell(&self, id: &str, line: &str) -> Result<String> {
        let answer = self.command(id, &["sh", "-c", line]).await?;
        let err = String::from_utf8_lossy(&answer.stderr).into_owned();
        ensure!(answer.exit_code == 0, "{line}: {}: {err}", answer.exit_code);
        Ok(String::from_utf8(answer.stdout)?.trim_end().to_owned())
    }

    /// Waits until the guest's agent takes commands.
    pub async fn await_agent(&self, id: &str) -> Result<()> {
        let within = Duration::from_secs(600);
        eventually(within, "a guest that takes commands", || async {
            let answer = self.exec(id, &["true"], 60).await?;
            ensure!(answer.exit_code == 0, "{answer:?}");
            Ok(())
        })
        .await
    }
}
