//! Sends a file of this computer to the image store of a node, as an image of one node.
//!
//! Invariant: the node gets size and checksum before the first byte, and makes an image only of exactly
//! these bytes. A part of a file, such as one of an archive, is sent as a file of its own.
//! Failure: the node's, and those of reading; what the node has received stays for the next call.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncWriteExt as _, BufReader};

use super::line::Line;
use super::progress::Progress;
use super::{Attempts, failure, is_passing};
use crate::cluster::Cluster;
use crate::cluster::node_pod::NodePod;

/// Bytes that are read at once.
const PIECE: usize = 256 << 10;

/// Bytes that do not change while they are sent.
#[derive(Debug)]
pub(in crate::commands) struct Source {
    file: File,
    path: PathBuf,
    /// Where they begin in the file.
    start: u64,
    size: u64,
    pub(in crate::commands) sha256: String,
}

/// The node that gets a file, and its name there.
#[derive(Debug, Clone, Copy)]
pub(in crate::commands) struct Receiver<'a> {
    pub(in crate::commands) vmlet_namespace: &'a str,
    pub(in crate::commands) node: &'a str,
    pub(in crate::commands) reference: &'a str,
}

/// An attempt that has failed.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error("failed to read {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("failed to send to the node")]
    Send(#[source] io::Error),
}

/// Whether the file of this computer is what failed, which is so for each node.
pub(in crate::commands) fn is_local(error: &anyhow::Error) -> bool {
    let of_file = |cause: &SendError| matches!(cause, SendError::File { .. });
    error.downcast_ref().is_some_and(of_file)
}

impl Source {
    /// A whole file.
    pub(in crate::commands) fn open(path: &Path, progress: &Progress) -> anyhow::Result<Self> {
        let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
        let about = file.metadata().ok().filter(std::fs::Metadata::is_file);
        let Some(about) = about else {
            bail!("{} is no file", path.display());
        };
        Self::read(file, path, 0..about.len(), progress, |_| {})
    }

    /// A part of a file. All of it is read for its checksum, and `also` gets it.
    pub(in crate::commands) fn read(
        mut file: File,
        path: &Path,
        part: Range<u64>,
        progress: &Progress,
        mut also: impl FnMut(&[u8]),
    ) -> anyhow::Result<Self> {
        let failed = || format!("read {}", path.display());
        let size = part.end.saturating_sub(part.start);
        file.seek(SeekFrom::Start(part.start))
            .with_context(failed)?;
        progress.begin(size, 0);
        let mut sum = Sha256::new();
        let mut piece = vec![0; PIECE];
        let mut done = 0;
        while done < size {
            let most = usize::try_from(size - done).unwrap_or(PIECE).min(PIECE);
            let count = file.read(&mut piece[..most]).with_context(failed)?;
            if count == 0 {
                bail!("{} became shorter while it was read", path.display());
            }
            sum.update(&piece[..count]);
            also(&piece[..count]);
            done += count as u64;
            progress.received(done);
        }
        let digits = sum.finalize();
        let sha256 = digits.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self {
            file,
            path: path.to_owned(),
            start: part.start,
            size,
            sha256,
        })
    }

    /// Sends it, in as many attempts as it needs.
    pub(in crate::commands) async fn send(
        &mut self,
        cluster: &Cluster,
        to: Receiver<'_>,
    ) -> anyhow::Result<()> {
        let progress = Progress::new("upload");
        let mut attempts = Attempts::default();
        let mut most = 0;
        loop {
            let mut reached = 0;
            let sent = self.attempt(cluster, to, &progress, &mut reached).await;
            let Err(error) = sent else {
                return Ok(());
            };
            if !is_passing(&error) {
                return Err(error);
            }
            most = most.max(reached);
            attempts.again(error, most, &progress).await?;
        }
    }

    /// `reached` becomes the number of bytes that the node had at the beginning.
    async fn attempt(
        &mut self,
        cluster: &Cluster,
        to: Receiver<'_>,
        progress: &Progress,
        reached: &mut u64,
    ) -> anyhow::Result<()> {
        let client = cluster.client.clone();
        let pod = NodePod::find(client, to.vmlet_namespace, to.node).await?;
        let mut program = pod.start(self.command(to.reference)).await?;
        let mut output = BufReader::new(&mut program.output);
        let mut line = async || Line::read(&mut output).await;
        let offset = loop {
            match line().await {
                Ok(Some(Line::Begin { offset, .. })) => break Some(offset),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break None,
            }
        };
        let mut is_complete = false;
        if let Some(offset) = offset {
            *reached = offset;
            progress.begin(self.size, offset);
            let sending = self.write(offset, &mut program.input, progress);
            let answered = async {
                loop {
                    match line().await {
                        Ok(Some(Line::End { .. })) => return true,
                        Ok(Some(_)) => {}
                        Ok(None) | Err(_) => return false,
                    }
                }
            };
            tokio::pin!(sending, answered);
            let mut is_sent = false;
            is_complete = loop {
                tokio::select! {
                    complete = &mut answered => break complete,
                    sent = &mut sending, if !is_sent => match sent {
                        Ok(()) => is_sent = true,
                        Err(error @ SendError::File { .. }) => return Err(error.into()),
                        // The program on the node says why.
                        Err(SendError::Send(_)) => is_sent = true,
                    },
                }
            };
        }
        if is_complete {
            return Ok(());
        }
        let ended = failure(program, to.node).await;
        Err(ended.unwrap_or_else(|| anyhow!("the program on node {} ended early", to.node)))
    }

    /// The program on the node that receives the file.
    fn command(&self, reference: &str) -> Vec<String> {
        let mut command: Vec<_> = ["vmletctl", "node", "upload-image", reference]
            .map(str::to_owned)
            .into();
        command.push(format!("--size={}", self.size));
        command.push(format!("--sha256={}", self.sha256));
        command
    }

    async fn write(
        &mut self,
        offset: u64,
        to: &mut (impl tokio::io::AsyncWrite + Unpin),
        progress: &Progress,
    ) -> Result<(), SendError> {
        let path = self.path.clone();
        let failed = |source| SendError::File {
            path: path.clone(),
            source,
        };
        let place = SeekFrom::Start(self.start.saturating_add(offset));
        self.file.seek(place).map_err(failed)?;
        let mut piece = vec![0; PIECE];
        let mut sent = offset;
        while sent < self.size {
            let most = usize::try_from(self.size - sent).unwrap_or(PIECE);
            let count = match self
                .file
                .read(&mut piece[..most.min(PIECE)])
                .map_err(failed)?
            {
                0 => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
                count => count,
            };
            to.write_all(&piece[..count])
                .await
                .map_err(SendError::Send)?;
            sent += count as u64;
            progress.received(sent);
        }
        to.flush().await.map_err(SendError::Send)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_is_sent_from_where_the_node_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        let bytes: Vec<u8> = (0..=250).cycle().take(3 * PIECE + 7).collect();
        std::fs::write(&path, &bytes).unwrap();
        let progress = Progress::hidden();
        let mut source = Source::open(&path, &progress).unwrap();
        assert_eq!(source.size, bytes.len() as u64);
        for offset in [0, 5, PIECE, bytes.len()] {
            let mut sent = Vec::new();
            let written = source.write(offset as u64, &mut sent, &progress).await;
            written.unwrap();
            assert_eq!(sent, bytes[offset..]);
        }
        assert!(Source::open(dir.path(), &progress).is_err());
        std::fs::write(&path, "shorter").unwrap();
        let cut = source.write(5, &mut Vec::new(), &progress).await;
        assert!(matches!(cut, Err(SendError::File { .. })));
    }

    #[tokio::test]
    async fn a_part_of_a_file_is_a_file_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        std::fs::write(&path, "before abc behind").unwrap();
        let progress = Progress::hidden();
        let mut seen = Vec::new();
        let also = |bytes: &[u8]| seen.extend_from_slice(bytes);
        let file = File::open(&path).unwrap();
        let part = Source::read(file, &path, 7..10, &progress, also);
        let mut part = part.unwrap();
        assert!(part.sha256.starts_with("ba7816bf8f01cfea"), "{part:?}");
        let mut sent = Vec::new();
        part.write(1, &mut sent, &progress).await.unwrap();
        assert_eq!(
            (seen.as_slice(), sent.as_slice()),
            (&b"abc"[..], &b"bc"[..])
        );
        let file = File::open(&path).unwrap();
        let cut = Source::read(file, &path, 7..37, &progress, |_| {});
        assert!(cut.unwrap_err().to_string().contains("became shorter"));
    }
}
