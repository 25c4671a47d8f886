//! `rm`: removes a pod with its disk and its log.
//!
//! Invariant: a running VM is removed only on explicit request; of the log's directories only empty
//! ones are removed.
//! Failure: the daemon's; a log that cannot be removed is reported and does not matter.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;

use crate::context::Endpoint;
use crate::pods::{self, Pod, PodArg};
use crate::runtime::Runtime;

/// Pod to remove.
#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    #[command(flatten)]
    pod: PodArg,
    /// Kill the VM if it is still running.
    #[arg(short, long)]
    force: bool,
}

pub(crate) async fn run(endpoint: &Endpoint, args: &RmArgs) -> anyhow::Result<ExitCode> {
    let runtime = endpoint.connect().await?;
    let pod = pods::find(&runtime, &args.pod).await?;
    if !args.force && pod.running().next().is_some() {
        bail!(
            "pod {} is running: stop it first (vmletctl node stop {}), or kill it with -f",
            pod.name(),
            pod.name()
        );
    }
    let logs = log_files(&runtime, &pod).await;
    runtime.stop_sandbox(pod.id()).await?;
    runtime.remove_sandbox(pod.id()).await?;
    for log in logs {
        remove_log(&log);
    }
    super::print(&format!("{}\n", pod.name()))?;
    Ok(ExitCode::SUCCESS)
}

async fn log_files(runtime: &Runtime, pod: &Pod) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for container in &pod.containers {
        // A container that was removed meanwhile has no more output.
        let status = runtime.container_status(&container.id, false).await.ok();
        let path = status
            .and_then(|s| s.status)
            .map(|s| PathBuf::from(s.log_path));
        paths.extend(path.filter(|path| path.is_absolute()));
    }
    paths
}

/// Removes the log, and the directories of container and pod if nothing else is in them.
pub(crate) fn remove_log(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        eprintln!("warning: remove log {}: {error}", path.display());
        return;
    }
    for directory in path.ancestors().skip(1).take(2) {
        if std::fs::remove_dir(directory).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_goes_with_its_empty_directories_and_no_further() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("logs/pod/vm/0.log");
        std::fs::create_dir_all(log.parent().unwrap()).unwrap();
        std::fs::write(&log, "x").unwrap();
        remove_log(&log);
        assert!(dir.path().join("logs").exists());
        assert!(!dir.path().join("logs/pod").exists());
    }

    #[test]
    fn a_directory_that_holds_something_else_stays() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("pod/vm/0.log");
        std::fs::create_dir_all(log.parent().unwrap()).unwrap();
        std::fs::write(dir.path().join("pod/vm/1.log"), "x").unwrap();
        remove_log(&log);
        assert!(dir.path().join("pod/vm/1.log").exists());
    }
}
