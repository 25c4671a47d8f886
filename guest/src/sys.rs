//! What the kernel does for terminals and new processes.
//!
//! Invariant: between fork and exec only system calls are made: nothing is allocated, no lock is
//! taken.
//! Failure: the kernel's error.
#![allow(unsafe_code)] // fork and ioctl have no safe form; a comment at each states why it is sound.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use guestapi::Terminal;
use nix::fcntl::{OFlag, open};
use nix::libc;
use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Uid, setgid, setgroups, setsid, setuid, write};

use crate::confine::Limits;
use crate::step::Step;
use crate::users::Account;
use crate::view::View;

nix::ioctl_write_ptr_bad!(set_window_size, libc::TIOCSWINSZ, Winsize);
nix::ioctl_write_int_bad!(set_controlling_terminal, libc::TIOCSCTTY);
nix::ioctl_readwrite!(fs_freeze, b'X', 119, libc::c_int);
nix::ioctl_readwrite!(fs_thaw, b'X', 120, libc::c_int);

/// What a new process is put into.
#[derive(Debug)]
pub(crate) struct Surroundings {
    /// Its standard input is the terminal of its session.
    pub(crate) has_terminal: bool,
    /// `cgroup.procs` of its cgroup.
    pub(crate) members: Option<File>,
    /// The text of its `oom_score_adj`; that of the agent without.
    pub(crate) oom_score: Option<Vec<u8>>,
    pub(crate) view: Option<View>,
    pub(crate) limits: Option<Limits>,
}

/// The text of an `oom_score_adj` other than 0.
pub(crate) fn oom_score(score: i32) -> Option<Vec<u8>> {
    (score != 0).then(|| score.clamp(-1000, 1000).to_string().into_bytes())
}

/// The process gets a session of its own, and runs as this account in these surroundings.
pub(crate) fn in_session_of_its_own(
    command: &mut Command,
    account: &Account,
    surroundings: Surroundings,
) {
    let Surroundings {
        has_terminal,
        members,
        oom_score,
        view,
        limits,
    } = surroundings;
    let groups: Vec<_> = account.groups.iter().copied().map(Gid::from_raw).collect();
    let uid = Uid::from_raw(account.uid);
    let gid = Gid::from_raw(account.gid);
    // An agent that is not root, as in tests, runs commands as its own user.
    let agent = nix::unistd::geteuid();
    let changes_user = agent.is_root();
    let changed = if changes_user {
        account.uid
    } else {
        agent.as_raw()
    };
    let change_user = move || {
        setgroups(&groups)?;
        setgid(gid)?;
        setuid(uid)
    };
    let begin = move || {
        default_signals()?;
        setsid()?;
        if has_terminal {
            // SAFETY: descriptor 0 is open here, and the call takes no pointer.
            unsafe { set_controlling_terminal(libc::STDIN_FILENO, 0) }?;
        }
        if let Some(members) = &members {
            write_all(members, b"0").map_err(Step::Group.failed())?;
        }
        if let Some(score) = &oom_score {
            let opened = open(c"/proc/self/oom_score_adj", OFlag::O_WRONLY, Mode::empty());
            let written = opened.and_then(|file| write_all(file, score));
            written.map_err(Step::OomScore.failed())?;
        }
        if let Some(view) = &view {
            view.enter()?;
        }
        if let Some(limits) = &limits {
            limits.begin(changed)?;
        }
        if changes_user {
            change_user().map_err(|errno| match limits {
                Some(_) => Step::User.failed()(errno),
                None => errno.into(),
            })?;
        }
        if let Some(limits) = &limits {
            limits.finish(changed)?;
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls only; an error becomes a number without allocation.
    unsafe { command.pre_exec(begin) };
}

/// A signal that the agent's service manager or shell ignores is not ignored by its commands.
fn default_signals() -> nix::Result<()> {
    for kind in Signal::iterator() {
        if !matches!(kind, Signal::SIGKILL | Signal::SIGSTOP) {
            // SAFETY: no handler of ours is replaced that this process still needs.
            unsafe { signal(kind, SigHandler::SigDfl) }?;
        }
    }
    Ok(())
}

/// The process ignores what ends a group of processes or a service, but for SIGKILL.
pub(crate) fn ignore_ends() -> nix::Result<()> {
    for kind in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        // SAFETY: no handler of ours is replaced.
        unsafe { signal(kind, SigHandler::SigIgn) }?;
    }
    Ok(())
}

/// The kernel takes such a value as a whole.
fn write_all(file: impl AsFd, bytes: &[u8]) -> nix::Result<()> {
    write(file, bytes).map(drop)
}

/// A new terminal: our side and the side of the process. Neither is inherited by later processes
/// but as their standard streams.
pub(crate) fn open_terminal(size: Terminal) -> io::Result<(OwnedFd, OwnedFd)> {
    let OpenptyResult { master, slave } = openpty(Some(&window_size(size)), None)?;
    for side in [&master, &slave] {
        let flags = nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC);
        nix::fcntl::fcntl(side, flags)?;
    }
    Ok((master, slave))
}

/// Sets the size of a terminal; its foreground processes get SIGWINCH.
pub(crate) fn resize(terminal: &OwnedFd, size: Terminal) -> io::Result<()> {
    let size = window_size(size);
    // SAFETY: the descriptor is open, and the size lives until the call returns.
    unsafe { set_window_size(terminal.as_raw_fd(), &raw const size) }?;
    Ok(())
}

fn window_size(size: Terminal) -> Winsize {
    let cells = |count: u32| u16::try_from(count).unwrap_or(u16::MAX);
    Winsize {
        ws_row: cells(size.rows),
        ws_col: cells(size.columns),
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

/// Writes a file system to its disk, and stops all writing.
pub(crate) fn freeze(folder: &File) -> nix::Result<()> {
    let mut unused = 0;
    // SAFETY: the descriptor is open, and the number lives until the call returns.
    unsafe { fs_freeze(folder.as_raw_fd(), &raw mut unused) }.map(drop)
}

/// Lets a file system go on.
pub(crate) fn thaw(folder: &File) -> nix::Result<()> {
    let mut unused = 0;
    // SAFETY: as above.
    unsafe { fs_thaw(folder.as_raw_fd(), &raw mut unused) }.map(drop)
}
