//! One attempt: what the program on the node writes goes to a [`Target`].
//!
//! Invariant: nothing counts as received but what the target has; the file is complete when
//! its checksum is the one that the node has computed.
//! Failure: [`ReceiveError`]; whether another attempt can continue is in [`ReceiveError::is_passing`].

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt as _};

use super::line::Line;
use super::progress::Progress;

/// What takes a file from its beginning to its end.
pub(in crate::commands) trait Target {
    /// Why it takes no more.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Bytes that it has, from the beginning of the file.
    fn received(&self) -> u64;

    /// Their checksum, in hexadecimal digits.
    fn checksum(&self) -> String;

    /// The rest of a file of this size follows.
    async fn begin(&mut self, size: u64) -> Result<(), Self::Error>;

    /// Takes the next bytes.
    async fn write(&mut self, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Drops what it has.
    async fn restart(&mut self) -> Result<(), Self::Error>;

    /// Whether another attempt can continue after this error.
    fn is_passing(error: &Self::Error) -> bool;
}

/// An attempt that has failed.
#[derive(Debug, thiserror::Error)]
pub(in crate::commands) enum ReceiveError<E: std::error::Error + Send + Sync + 'static> {
    #[error("failed to read from the node")]
    Read(#[source] io::Error),
    #[error("the node ended the export early")]
    Early,
    #[error("failed to understand the program on the node: it may be of another version")]
    Protocol,
    #[error(
        "the checksum of what was received is {received}, and the node sent {sent}: what was received is removed, \
         export the disk again"
    )]
    Checksum { received: String, sent: String },
    #[error(transparent)]
    Target(#[from] E),
}

impl<E: std::error::Error + Send + Sync + 'static> ReceiveError<E> {
    /// Whether another attempt can continue.
    pub(in crate::commands) fn is_passing<T: Target<Error = E>>(&self) -> bool {
        match self {
            // Text that is no line of ours is of this kind.
            Self::Read(error) => error.kind() != io::ErrorKind::InvalidData,
            Self::Early => true,
            Self::Target(error) => T::is_passing(error),
            Self::Protocol | Self::Checksum { .. } => false,
        }
    }
}

type Received<T, R = ()> = Result<R, ReceiveError<<T as Target>::Error>>;

/// Receives what is missing.
pub(in crate::commands) async fn receive<T: Target>(
    from: &mut (impl AsyncBufRead + Unpin),
    to: &mut T,
    progress: &Progress,
) -> Received<T> {
    let size = begin(from, to, progress).await?;
    while to.received() < size {
        let bytes = from.fill_buf().await.map_err(ReceiveError::Read)?;
        let rest = usize::try_from(size - to.received()).unwrap_or(usize::MAX);
        let count = bytes.len().min(rest);
        if count == 0 {
            return Err(ReceiveError::Early);
        }
        to.write(&bytes[..count]).await?;
        from.consume(count);
        progress.received(to.received());
    }
    let Line::End { sha256: sent } = line::<T>(from).await? else {
        return Err(ReceiveError::Protocol);
    };
    let received = to.checksum();
    if received == sent {
        return Ok(());
    }
    // Nothing of it can be trusted. On standard output there is nothing that can be removed.
    let _ = to.restart().await;
    Err(ReceiveError::Checksum { received, sent })
}

/// Waits until the bytes begin; returns the size of the file.
async fn begin<T: Target>(
    from: &mut (impl AsyncBufRead + Unpin),
    to: &mut T,
    progress: &Progress,
) -> Received<T, u64> {
    loop {
        match line::<T>(from).await? {
            Line::Preparing(percent) => progress.preparing(percent),
            Line::Begin { size, offset } if offset == to.received() && offset <= size => {
                to.begin(size).await?;
                progress.begin(size, offset);
                return Ok(size);
            }
            Line::Begin { size, offset: 0 } => {
                to.restart().await?;
                to.begin(size).await?;
                progress.say("the disk is not the one of the earlier export: beginning again");
                progress.begin(size, 0);
                return Ok(size);
            }
            Line::Begin { .. } | Line::End { .. } => return Err(ReceiveError::Protocol),
        }
    }
}

async fn line<T: Target>(from: &mut (impl AsyncBufRead + Unpin)) -> Received<T, Line> {
    let line = Line::read(from).await.map_err(ReceiveError::Read)?;
    line.ok_or(ReceiveError::Early)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use sha2::{Digest as _, Sha256};

    use super::*;
    use crate::commands::export::destination::{Destination, DestinationError};

    type Failed = ReceiveError<DestinationError>;

    const CONTENT: &[u8] = b"what the disk has";

    fn hex(bytes: &[u8]) -> String {
        Sha256::digest(bytes)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    /// What a node sends to a client that has `offset` bytes.
    fn sent(content: &[u8], offset: usize) -> Vec<u8> {
        let begin = Line::Begin {
            size: content.len() as u64,
            offset: offset as u64,
        };
        let end = Line::End {
            sha256: hex(content),
        };
        let [first, begin, end] =
            [Line::Preparing(50), begin, end].map(|line| line.text().unwrap());
        [
            first.as_bytes(),
            begin.as_bytes(),
            &content[offset..],
            end.as_bytes(),
        ]
        .concat()
    }

    async fn attempt(path: &Path, mut bytes: &[u8]) -> Result<(), Failed> {
        let mut to = Destination::open(path, false).unwrap();
        let received = receive(&mut bytes, &mut to, &Progress::hidden()).await;
        if received.is_ok() {
            to.finish().unwrap();
        }
        received
    }

    fn place() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        let part = dir.path().join("d.part");
        (dir, path, part)
    }

    #[tokio::test]
    async fn an_attempt_that_breaks_off_anywhere_is_continued() {
        let all = sent(CONTENT, 0);
        for cut in 0..all.len() {
            let (_dir, path, part) = place();
            let broken = attempt(&path, &all[..cut]).await.unwrap_err();
            assert!(broken.is_passing::<Destination>(), "{cut}: {broken:?}");
            let there = fs::read(&part).unwrap();
            assert!(CONTENT.starts_with(&there) && !path.exists());
            attempt(&path, &sent(CONTENT, there.len())).await.unwrap();
            assert_eq!(fs::read(&path).unwrap(), CONTENT);
        }
    }

    #[tokio::test]
    async fn a_disk_that_has_changed_is_received_anew() {
        let (_dir, path, part) = place();
        fs::write(&part, "what another disk had").unwrap();
        attempt(&path, &sent(CONTENT, 0)).await.unwrap();
        assert_eq!(fs::read(&path).unwrap(), CONTENT);
    }

    #[tokio::test]
    async fn a_wrong_checksum_leaves_nothing_to_continue() {
        let (_dir, path, part) = place();
        let mut bytes = sent(CONTENT, 0);
        let at = bytes.windows(4).position(|four| four == b"disk").unwrap();
        bytes[at] = b'r';
        let wrong = attempt(&path, &bytes).await.unwrap_err();
        assert!(
            matches!(wrong, ReceiveError::Checksum { .. }) && !wrong.is_passing::<Destination>()
        );
        assert!(!path.exists());
        assert_eq!(fs::read(&part).unwrap(), b"");
    }

    #[tokio::test]
    async fn what_another_version_sends_is_refused() {
        let (_dir, path, part) = place();
        fs::write(&part, "four").unwrap();
        let odd = Line::Begin { size: 9, offset: 3 }.text().unwrap();
        for bytes in [odd.as_bytes(), b"QFI\xfb\n", b"{\"later\":1}\n"] {
            let refused = attempt(&path, bytes).await.unwrap_err();
            assert!(!refused.is_passing::<Destination>(), "{refused:?}");
        }
        assert_eq!(fs::read(&part).unwrap(), b"four");
    }
}
