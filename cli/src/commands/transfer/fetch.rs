//! Receives a disk from its node, in as many attempts as that needs.
//!
//! Invariant: a connection that breaks is made again for as long as bytes arrive; the target
//! says what it has, and the node whether that belongs to the disk. The node keeps its copy until the program that
//! is returned says that all of it is where it belongs.
//! Failure: the cluster's, the node's or the target's; what was received stays for the next attempt.

use tokio::io::{AsyncWriteExt as _, BufReader};

use super::disk::ExportedDisk;
use super::line::{COMPLETE, Line};
use super::progress::Progress;
use super::receive::{ReceiveError, Target, receive};
use super::{Attempts, failure, is_passing};
use crate::cluster::Cluster;
use crate::cluster::node_pod::{NodePod, Program};
use crate::commands::publish::Layer;

/// Bytes that are read at once.
const BUFFER: usize = 1 << 20;

/// The way to a disk on its node.
pub(in crate::commands) struct Fetch<'a> {
    pub(in crate::commands) cluster: &'a Cluster,
    /// Namespace in which Vmlet is installed.
    pub(in crate::commands) namespace: &'a str,
    pub(in crate::commands) disk: &'a ExportedDisk,
    pub(in crate::commands) progress: &'a Progress,
}

/// A disk that was received; the node keeps its copy until [`Self::complete`].
pub(in crate::commands) struct Fetched(Program);

impl Fetch<'_> {
    /// Receives the disk.
    pub(in crate::commands) async fn run<T: Target>(&self, to: &mut T) -> anyhow::Result<Fetched> {
        tokio::select! {
            received = self.received(to) => received,
            never = self.disk.hold(self.cluster) => match never {},
        }
    }

    async fn received<T: Target>(&self, to: &mut T) -> anyhow::Result<Fetched> {
        let mut attempts = Attempts::default();
        loop {
            let error = match self.attempt(to).await {
                Ok(program) => return Ok(Fetched(program)),
                Err(error) => error,
            };
            let received: Option<&ReceiveError<T::Error>> = error.downcast_ref();
            let again = received.is_some_and(ReceiveError::is_passing::<T>);
            if !(again || is_passing(&error)) {
                return Err(error);
            }
            attempts.again(error, to.received(), self.progress).await?;
        }
    }

    /// Whether the disk makes this layer of a container disk, as its node finds out. A node that cannot be reached,
    /// or does not know, says nothing of it.
    pub(in crate::commands) async fn same_layer(&self, layer: &Layer) -> Option<Fetched> {
        tokio::select! {
            compared = self.compared(layer) => compared,
            never = self.disk.hold(self.cluster) => match never {},
        }
    }

    async fn compared(&self, layer: &Layer) -> Option<Fetched> {
        let node = &self.disk.node;
        let pod = NodePod::find(self.cluster.client.clone(), self.namespace, node).await;
        let mut command = self.command();
        command.push("--layer".to_owned());
        let mut program = pod.ok()?.start(command).await.ok()?;
        let mut output = BufReader::new(&mut program.output);
        let mut size = 0;
        loop {
            match Line::read(&mut output).await.ok()?? {
                Line::Preparing(percent) => self.progress.preparing(percent),
                Line::Begin { size: of_layer, .. } => size = of_layer,
                Line::End { sha256 } => {
                    let is_same = size == layer.size && layer.digest == format!("sha256:{sha256}");
                    return is_same.then_some(Fetched(program));
                }
            }
        }
    }

    async fn attempt<T: Target>(&self, to: &mut T) -> anyhow::Result<Program> {
        let node = &self.disk.node;
        let pod = NodePod::find(self.cluster.client.clone(), self.namespace, node).await?;
        let mut command = self.command();
        if to.received() > 0 {
            let received = format!("--received={}", to.received());
            command.extend([received, format!("--received-sha256={}", to.checksum())]);
        }
        let mut program = pod.start(command).await?;
        let mut output = BufReader::with_capacity(BUFFER, &mut program.output);
        let received = receive(&mut output, to, self.progress).await;
        match received {
            Ok(()) => Ok(program),
            Err(error @ (ReceiveError::Early | ReceiveError::Read(_))) => {
                Err(failure(program, node).await.unwrap_or(error.into()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The program on the node that sends the disk.
    fn command(&self) -> Vec<String> {
        let disk = self.disk;
        let mut command: Vec<_> = ["vmletctl", "node", "export-disk", &disk.uid]
            .map(str::to_owned)
            .into();
        // A program that does not know snapshots, or backups, refuses the option.
        command.extend(disk.snapshot.iter().map(|uid| format!("--snapshot={uid}")));
        if let Some(backup) = &disk.backup {
            let options = [
                ("backup", &backup.uid),
                ("target", &backup.target),
                ("vm-name", &backup.vm_name),
            ];
            let digest = backup.sha256.iter().map(|sha256| ("sha256", sha256));
            let options = options.into_iter().chain(digest);
            command.extend(options.map(|(name, value)| format!("--{name}={value}")));
        }
        command
    }
}

impl Fetched {
    /// The disk is where it belongs: a node that does not learn of it removes its copy later.
    pub(in crate::commands) async fn complete(mut self) {
        let _ = self.0.input.write_all(COMPLETE.as_bytes()).await;
        let _ = self.0.end().await;
    }
}
