//! Prepares one start of a guest, and hands its taps to the process with the token.
//!
//! Invariant: a token is good for one hand-off, of one sandbox, to one user, until the next start or
//! the end of the sandbox, for [`TOKEN_LIFE`](tapmanager::wire::TOKEN_LIFE) at most; that it is used
//! is on disk before anything is handed over, and the process is in the pod's cgroup before that.
//! Failure: a hand-off that fails has used its token; the caller prepares another start.

use std::fmt::Write as _;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use cgroup::PodCgroup;
use fdpass::PeerCredentials;
use service::boot_clock;
use tapmanager::wire::{HandoffNic, Permit, StartRequest};

use super::{Live, Sandboxes, up};
use crate::failure::Failure;
use crate::journal::{Entry, Phase, Start};

/// The deadline for a cgroup to take a process.
const PLACE: Duration = Duration::from_secs(10);

/// A start that is allowed.
#[derive(Debug, Clone)]
pub(super) struct Allowed {
    sandbox: String,
    uid: Option<u32>,
}

impl Sandboxes {
    /// A token for the next start, and the socket for it; an earlier unused one is void from then on.
    ///
    /// # Errors
    /// When the sandbox is not up, the name of the cgroup is impossible, or the socket cannot be made.
    pub(crate) async fn prepare_start(&self, start: StartRequest) -> Result<Permit, Failure> {
        let mut slot = self.lock(&start.id).await?;
        up(&slot, &start.id)?;
        if !start.cgroup_parent.is_empty() {
            PodCgroup::parse(&start.cgroup_parent).map_err(Failure::Cgroup)?;
        }
        let token = random_token().map_err(Failure::Random)?;
        let Some(Live { entry, .. }) = slot.as_mut() else {
            return Err(Failure::NotFound(start.id));
        };
        let id = start.id.clone();
        self.forget_start(entry);
        entry.start = Some(Start::new(token.clone(), start, boot_clock::now()));
        self.journal.put(entry).await?;
        faultpoint::point("tap.start.token");
        let socket = self.remember_start(entry).map_err(Failure::Socket)?;
        tracing::info!(sandbox = id, "start prepared");
        Ok(Permit { token, socket })
    }

    /// Whether a machine that runs as this user may be started now.
    pub(crate) fn expects(&self, uid: u32) -> bool {
        let tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.values().any(|start| start.uid == Some(uid))
    }

    /// The NICs of the sandbox that `token` belongs to, for the peer's process, which is placed
    /// first.
    ///
    /// # Errors
    /// [`Failure::Token`], also when the token is another user's, which stays good; or the step
    /// that failed; the token is used then.
    pub(crate) async fn hand_off(
        &self,
        token: &str,
        peer: PeerCredentials,
    ) -> Result<(Vec<HandoffNic>, Vec<OwnedFd>), Failure> {
        let PeerCredentials { pid, uid, .. } = peer;
        let id = {
            let tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
            let start = tokens.get(token).ok_or(Failure::Token)?;
            if start.uid.is_some_and(|owner| owner != uid) {
                return Err(Failure::Token);
            }
            start.sandbox.clone()
        };
        let mut slot = self.lock(&id).await?;
        let Some(Live { entry, ns, .. }) = slot.as_mut() else {
            return Err(Failure::Token);
        };
        if entry.phase != Phase::Up || entry.start.as_ref().is_none_or(|s| s.token != token) {
            return Err(Failure::Token);
        }
        let now = boot_clock::now();
        let expired = entry.start.as_ref().is_none_or(|s| s.is_expired(now));
        let start = self.forget_start(entry);
        self.journal.put(entry).await?;
        faultpoint::point("tap.handoff.consumed");
        let start = start.filter(|_| !expired).ok_or(Failure::Token)?;
        if !start.cgroup_parent.is_empty() {
            place(self.cgroup_root.clone(), &start, pid).await?;
        }
        let Some((ns, network)) = ns.as_ref().zip(entry.network.as_ref()) else {
            return Err(Failure::Changed("its namespace is not open".to_owned()));
        };
        let mut nics = Vec::new();
        let mut taps = Vec::new();
        for nic in network.guest_nics() {
            taps.push(netns::open_tap(ns, &nic.tap).await.map_err(Failure::Tap)?);
            nics.push(HandoffNic {
                mac: nic.mac.clone(),
                mtu: nic.mtu,
            });
        }
        tracing::info!(
            sandbox = id,
            pid,
            nics = nics.len(),
            "tap descriptors handed over"
        );
        Ok((nics, taps))
    }

    /// Makes the start that `entry` allows findable by its token; returns the name of its socket.
    pub(super) fn remember_start(&self, entry: &Entry) -> Result<Option<String>, fdpass::Error> {
        let Some(start) = &entry.start else {
            return Ok(None);
        };
        let allowed = Allowed {
            sandbox: entry.request.id.clone(),
            uid: start.uid,
        };
        self.tokens
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(start.token.clone(), allowed);
        self.sockets.open(&entry.request.id, start.uid).map(Some)
    }

    /// Voids the start that `entry` allows; the caller writes the journal.
    pub(super) fn forget_start(&self, entry: &mut Entry) -> Option<Start> {
        let start = entry.start.take()?;
        self.sockets.close(&entry.request.id);
        self.tokens
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&start.token);
        Some(start)
    }
}

/// Moves the process into the pod's cgroup. A cgroup that does not answer in time fails the start,
/// and keeps neither the sandbox nor its removal.
async fn place(root: PathBuf, start: &Start, pid: i32) -> Result<(), Failure> {
    let cgroup = PodCgroup::parse(&start.cgroup_parent).map_err(Failure::Cgroup)?;
    let memory = start.memory_bytes;
    if pid <= 0 {
        let words = "the process is in another pid namespace, so it cannot be placed";
        return Err(Failure::Invalid(words.to_owned()));
    }
    let is_given_up = Arc::new(AtomicBool::new(false));
    let given_up = Arc::clone(&is_given_up);
    let work = move || {
        if memory > 0 {
            cgroup.allow_memory(&root, memory)?;
        }
        // Its number may be another process's soon.
        if given_up.load(Ordering::Relaxed) {
            return Ok(());
        }
        cgroup.place(&root, pid)
    };
    match tokio::time::timeout(PLACE, tokio::task::spawn_blocking(work)).await {
        Ok(placed) => placed
            .map_err(Failure::Interrupted)?
            .map_err(Failure::Cgroup),
        Err(_) => {
            is_given_up.store(true, Ordering::Relaxed);
            Err(Failure::CgroupStuck(PLACE.as_secs()))
        }
    }
}

fn random_token() -> std::io::Result<String> {
    let mut bytes = [0_u8; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let mut token = String::with_capacity(64);
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(token, "{byte:02x}");
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use nix::fcntl::OFlag;
    use nix::sys::stat::Mode;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_cgroup_that_does_not_answer_fails_the_start_in_time() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("cgroup.controllers"), "memory\n").unwrap();
        let leaf = root.path().join("kubepods/pod1/vmlet");
        std::fs::create_dir_all(&leaf).unwrap();
        // Opening it waits for a reader.
        let procs = leaf.join("cgroup.procs");
        nix::unistd::mkfifo(&procs, Mode::S_IRWXU).unwrap();
        let start = Start {
            token: String::new(),
            cgroup_parent: "/kubepods/pod1".to_owned(),
            memory_bytes: 0,
            uid: None,
            expires: 0,
        };
        let path = root.path().to_owned();
        // A thread that works holds the clock of the test: it passes by hand.
        let placing = tokio::spawn(async move { place(path, &start, 1).await });
        tokio::task::yield_now().await;
        tokio::time::advance(PLACE).await;
        let failure = placing.await.unwrap().unwrap_err();
        assert!(matches!(failure, Failure::CgroupStuck(_)), "{failure}");
        // The thread ends with a reader, whether it opens the file before or after it, if at all: this
        // one stays until the process ends.
        let reader = OFlag::O_RDONLY | OFlag::O_NONBLOCK;
        let reader = nix::fcntl::open(&procs, reader, Mode::empty()).unwrap();
        std::mem::forget(reader);
    }

    #[test]
    fn tokens_are_64_digits_and_differ() {
        let a = random_token().unwrap();
        let b = random_token().unwrap();
        assert_eq!(a.len(), 64);
        assert!(a.bytes().all(|b| b.is_ascii_hexdigit()));
        assert_ne!(a, b);
    }
}
