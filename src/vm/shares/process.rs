//! The processes that serve shares.
//!
//! Invariant: a process is in the cgroup of its pod before it reads a byte of the guest. It ends
//! when the emulator disconnects; one to which no emulator has connected ends when this module
//! connects and disconnects, or by itself after some minutes.
//! Failure: [`ShareError::Directory`]; what was started for the same machine ends with the undoing of the
//! start. [`super::watch`] says what becomes of a machine whose process ends before it.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, chown};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use cgroup::PodCgroup;
use service::telemetry::bounded;

use super::record::Server;
use super::report::tail;
use super::watch::End;
use super::{Protocol, Share, plan};
use crate::helper::{Child, Service, Start, Stream, Streams, User};
use crate::machine_socket;
use crate::platform::Platform;
use crate::sandbox::Sandbox;
use crate::vm::error::Result;
use crate::vm::model::Container;
use crate::vm::service::Containers;
use crate::vm::shares::ShareError;
use crate::vm::users::Owner;

/// Time for the move of a process to its pod's cgroup.
const PLACING: Duration = Duration::from_secs(20);

/// The socket of a share, beside the others of its machine.
pub(in crate::vm) fn socket_name(share: &Share) -> String {
    format!("{}.fs", share.tag)
}

/// What the process of a share reports, beside its socket.
fn log_name(share: &Share) -> String {
    format!("{}.log", share.tag)
}

impl<P: Platform> Containers<P> {
    /// Starts a process for each share that has one; the directory of the machine's sockets is there.
    pub(in crate::vm) async fn serve_shares(&self, row: &Container, pod: &Sandbox) -> Result<()> {
        for share in row.spec.shares_by(Protocol::Virtiofs) {
            let failed = |source| ShareError::Directory {
                path: share.path.clone(),
                source,
            };
            let (child, server) = self.serve(row, pod, share).await.map_err(failed)?;
            faultpoint::point("vm.start.share");
            self.watch_child(row, share, (child, server));
        }
        Ok(())
    }

    async fn serve(
        &self,
        row: &Container,
        pod: &Sandbox,
        share: &Share,
    ) -> io::Result<(Child, Server)> {
        let sockets = self.paths.sockets(&row.id);
        let socket = sockets.join(socket_name(share));
        let log = sockets.join(log_name(share));
        let owner = self.owner(row);
        let prepare = move || {
            let log = OpenOptions::new()
                .create(true)
                .append(true)
                .mode(0o600)
                .open(log)?;
            Ok::<_, io::Error>((listen(&socket, owner)?, log))
        };
        let prepared = tokio::task::spawn_blocking(prepare).await;
        let (listener, log) = prepared.map_err(io::Error::other)??;

        let user = &row.spec.config.share_user;
        let own = &self.settings.shares.user;
        let id = |given: Option<u32>, own| given.filter(|id| *id != 0).unwrap_or(own);
        let groups = user.groups.iter().filter(|gid| **gid != 0);
        let groups: Vec<_> = groups.map(ToString::to_string).collect();
        let user = User {
            uid: id(user.uid, own.uid),
            gid: id(user.gid, own.gid),
        };
        let directory = if share.is_of_pod() {
            self.paths.volumes(&row.id)
        } else {
            plan::below(&self.settings.shares.root, &share.host_path)
        };
        let mut command = Service::new(&self.settings.shares.program).command();
        command
            .arg("serve")
            .arg(format!("--tag={}", share.tag))
            .arg("--directory")
            .arg(directory)
            .arg(format!("--uid={}", user.uid))
            .arg(format!("--gid={}", user.gid));
        if !groups.is_empty() {
            command.arg(format!("--groups={}", groups.join(",")));
        }
        if share.read_only {
            command.arg("--read-only");
        }
        let (uid, gid) = row.spec.config.share_user.requested();
        if !share.is_of_pod() {
            command.args(uid.is_none().then(|| format!("--root-uid={}", own.uid)));
            command.args(gid.is_none().then(|| format!("--root-gid={}", own.gid)));
        } else {
            // Each process of the pod finds its own files under its own number.
            command.arg(format!("--guest-uid={}", uid.unwrap_or(0)));
            command.arg(format!("--guest-gid={}", gid.unwrap_or(0)));
        }
        let streams = Streams {
            stdin: Stream::Pipe,
            stdout: Stream::Open(OwnedFd::from(listener)),
            stderr: Stream::Open(OwnedFd::from(log)),
        };
        let mut child = self.start_program(command, streams).await?;
        let parent = pod.config.cgroup_parent.clone();
        if let Some(pid) = child.id()
            && !parent.is_empty()
        {
            let root = self.settings.cgroup_root.clone();
            // The thread has the program, so that its number is no other's before the kernel
            // returns.
            let place = move || {
                let pid = i32::try_from(pid).map_err(io::Error::other)?;
                let pod = PodCgroup::parse(&parent).map_err(io::Error::other)?;
                pod.place(&root, pid).map_err(io::Error::other)?;
                Ok::<_, io::Error>(child)
            };
            let sandbox = row.sandbox.clone();
            let placed = self.meter.at_cgroup(sandbox, PLACING, place).await;
            child = placed.ok_or_else(|| not_placed(&pod.config.cgroup_parent))??;
        }
        let server = self.record_server(row, share, &child).await?;
        child.outlive();
        // Its end is the permission to begin.
        drop(child.pipes.stdin.take());
        Ok((child, server))
    }

    /// Starts the program of shares. It ends with its handle.
    pub(super) async fn start_program(
        &self,
        command: Command,
        streams: Streams,
    ) -> io::Result<Child> {
        let started = Start::new(command, streams).begin().await;
        started.map_err(not_started(&self.settings.shares.program))
    }

    /// Watches a process that this daemon started, and reports one that ends with an error.
    fn watch_child(&self, row: &Container, share: &Share, (mut child, server): (Child, Server)) {
        let id = row.id.clone();
        let Share { path, tag, .. } = share.clone();
        let log = self.paths.sockets(&id).join(log_name(share));
        let servers = Arc::clone(&self.servers);
        let ended = async move {
            let ended = child.wait().await?;
            if ended.success() {
                servers.ended(&id, &tag, server, End::Success);
                return Ok(());
            }
            let last = tokio::task::spawn_blocking(move || tail(&log)).await;
            let last = last.unwrap_or_default();
            tracing::warn!(container = %id, path, %ended, last, "process of a share ended");
            let report = bounded(&format!("{ended}: {last}"));
            let report = report.trim_end_matches(": ").trim_end_matches(':');
            servers.ended(&id, &tag, server, End::Failure(report.to_owned()));
            Ok(())
        };
        self.watch_server(row, share, server, ended);
    }

    /// Ends processes of shares to which no emulator has connected. Blocks for a moment only.
    pub(in crate::vm) fn end_shares(&self, row: &Container) {
        let sockets = self.paths.sockets(&row.id);
        for share in row.spec.shares_by(Protocol::Virtiofs) {
            // No process listens any more when an emulator was connected.
            let _ = machine_socket::touch(&sockets.join(socket_name(share)));
        }
    }
}

/// The program is missing, or cannot be executed.
fn not_started(program: &Path) -> impl FnOnce(io::Error) -> io::Error {
    move |error| {
        io::Error::new(
            error.kind(),
            format!("start {}: {error}", program.display()),
        )
    }
}

fn not_placed(cgroup: &str) -> io::Error {
    let words = format!(
        "the cgroup {cgroup} did not take its process within {} s",
        PLACING.as_secs()
    );
    io::Error::new(io::ErrorKind::TimedOut, words)
}

fn listen(path: &Path, Owner { uid, gid }: Owner) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // The directory is its user's alone.
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    chown(path, Some(uid), Some(gid))?;
    Ok(listener)
}
