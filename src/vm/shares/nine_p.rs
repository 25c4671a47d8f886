//! Directories that the emulator serves by 9p.
//!
//! Invariant: a directory is opened for one start. Its descriptor is that of a mount of its own, in
//! which the emulator has the files of the pod's user, or of root, and above which there is nothing;
//! a read-only one is read-only for the kernel of the node. It ends with the emulator.
//! Failure: [`ShareError::Directory`]. A file system that cannot show other owners is an event in the log, and
//! the emulator accesses it as its own user.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Output;
use std::time::Duration;

use fdpass::{AsyncConnection, Message};
use serde::Serialize;

use super::volumes::refusal;
use super::{Protocol, Share};
use crate::foreign::Open;
use crate::helper::{Service, Stream, Streams};
use crate::platform::Platform;
use crate::vm::error::Result;
use crate::vm::model::Container;
use crate::vm::service::Containers;
use crate::vm::shares::ShareError;

/// Time for one directory; a server of network storage may be slow.
const OPENED_WITHIN: Duration = Duration::from_secs(60);
/// Most bytes of the program's message.
const LONGEST: usize = 4096;

/// A directory, with one descriptor.
#[derive(Debug, Serialize)]
pub(in crate::vm) struct WireDirectory {
    pub(in crate::vm) tag: String,
    pub(in crate::vm) read_only: bool,
}

impl<P: Platform> Containers<P> {
    /// Opens the directories that a machine's emulator serves.
    pub(in crate::vm) async fn open_directories(
        &self,
        row: &Container,
    ) -> Result<(Vec<WireDirectory>, Vec<Open<Vec<OwnedFd>>>)> {
        let mut described = Vec::new();
        let mut opened = Vec::new();
        for share in row.spec.shares_by(Protocol::NineP) {
            let failed = |source| ShareError::Directory {
                path: share.path.clone(),
                source,
            };
            let opening = tokio::time::timeout(OPENED_WITHIN, self.open_directory(row, share));
            let late = |_| io::Error::other(format!("not opened within {OPENED_WITHIN:?}"));
            let directory = opening.await.map_err(late).and_then(|done| done);
            opened.push(directory.map_err(failed)?);
            faultpoint::point("vm.start.share");
            described.push(WireDirectory {
                tag: share.tag.clone(),
                read_only: share.read_only,
            });
        }
        Ok((described, opened))
    }

    /// The first descriptor is that of the directory.
    async fn open_directory(
        &self,
        row: &Container,
        share: &Share,
    ) -> io::Result<Open<Vec<OwnedFd>>> {
        let (ours, theirs) = fdpass::socketpair().map_err(io::Error::other)?;
        let ours = AsyncConnection::try_from(ours).map_err(io::Error::other)?;
        let settings = &self.settings.shares;
        let emulator = self.owner(row);
        let user = &row.spec.config.share_user;
        let mut command = Service::new(&settings.program).command();
        command.arg("open").arg("--root").arg(&settings.root);
        command.arg("--directory").arg(&share.host_path);
        command.arg(format!("--uid={}", emulator.uid));
        command.arg(format!("--gid={}", emulator.gid));
        command.args(user.uid.map(|uid| format!("--as-uid={uid}")));
        command.args(user.gid.map(|gid| format!("--as-gid={gid}")));
        if !user.groups.is_empty() {
            let groups: Vec<_> = user.groups.iter().map(ToString::to_string).collect();
            command.arg(format!("--groups={}", groups.join(",")));
        }
        command.args(share.read_only.then_some("--read-only"));
        // Nothing of ours keeps the socket open when the program ends.
        let streams = Streams {
            stdin: Stream::Null,
            stdout: Stream::Open(OwnedFd::from(theirs)),
            stderr: Stream::Pipe,
        };
        let child = self.start_program(command, streams).await?;
        let receive = async {
            let message = ours.recv(LONGEST).await?;
            let keep = |message: Message| {
                let directory = self.foreign.keep(&share.host_path, message.fds);
                (message.bytes, directory)
            };
            Ok::<_, fdpass::Error>(message.map(keep))
        };
        let (message, output) = tokio::join!(receive, child.wait_with_output());
        let Output { status, stderr, .. } = output?;
        if !status.success() {
            return Err(refusal(&stderr));
        }
        let message = message.map_err(io::Error::other)?;
        let missing = || io::Error::other("the program sent no directory");
        let (note, directory) = message.ok_or_else(missing)?;
        let note = String::from_utf8_lossy(&note);
        let note = note.trim();
        if !note.is_empty() {
            let path = &share.path;
            tracing::info!(container = %row.id, path, note, "users of a volume not mapped");
        }
        if directory.local().is_empty() {
            return Err(missing());
        }
        Ok(directory)
    }
}
