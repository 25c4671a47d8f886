//! The confinement of a helper between fork and execution.
//!
//! Invariant: everything is prepared before the fork; after it only system calls are made, and
//! each that fails keeps the program from running. The filter of system calls comes last.
//! Failure: the start of the command fails with the kernel's answer.
#![allow(unsafe_code)] // pre_exec and capset have no safe form; a comment at each states why it is sound.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{F_SETFD, FdFlag, OFlag, fcntl, open};
use nix::libc;
use nix::sys::prctl::set_no_new_privs;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::SigSet;
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Uid, geteuid, setgroups, setresgid, setresuid, setsid, write};

use super::{Limits, Turn, User, calls, namespaces, wall};

/// Descriptors that a helper may have open: its own files and those of its libraries.
const DESCRIPTORS: u64 = 256;

/// Processes and threads that a user of a helper may have: `qemu-img` reads and writes with up to 64.
const PROCESSES: u64 = 256;

/// How readily the kernel ends the process.
const OOM_SCORE: &CStr = c"/proc/self/oom_score_adj";

/// `_LINUX_CAPABILITY_VERSION_3`
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// How a helper is confined.
#[derive(Debug)]
pub(super) struct Confinement {
    pub(super) program: PathBuf,
    pub(super) user: User,
    pub(super) limits: Limits,
    /// What it may open beside its own files and the system's.
    pub(super) within_reach: Vec<PathBuf>,
    /// Whether it is behind Landlock, where the kernel has that.
    pub(super) has_wall: bool,
    /// The program, where it is a file that the daemon has open.
    pub(super) executable: Option<Arc<File>>,
    /// Its user is that of no other run meanwhile.
    pub(super) _turn: Option<Arc<Turn>>,
}

/// What a helper enters between fork and execution.
struct Walls {
    /// Whether it is the first process of its namespace.
    has_namespaces: bool,
    landlock: Option<OwnedFd>,
    calls: &'static [libc::sock_filter],
}

/// Has the program begin with no signal blocked, whatever the thread blocks that starts it.
pub(super) fn unblock_signals(command: &mut Command) {
    let unblock = || Ok(SigSet::empty().thread_set_mask()?);
    // SAFETY: the closure makes one system call, by a set on its stack.
    unsafe { command.pre_exec(unblock) };
}

impl Confinement {
    /// Makes the command confine itself before it executes its program, which inherits the files.
    /// They stay open until it has started. `has_namespaces`: this thread has entered namespaces for it.
    /// Blocks where the servers of the files do not answer.
    pub(super) fn apply(
        &self,
        command: &mut Command,
        files: &[impl AsFd],
        has_namespaces: bool,
    ) -> io::Result<()> {
        let landlock = if self.has_wall {
            wall::around(
                (&self.program, self.executable.as_deref()),
                files,
                &self.within_reach,
            )?
        } else {
            None
        };
        let walls = Walls {
            has_namespaces,
            landlock,
            calls: calls::filter()?,
        };
        let numbers = files.iter().map(|file| file.as_fd().as_raw_fd());
        confine(command, (self.user, self.limits), numbers.collect(), walls);
        Ok(())
    }

    /// Has this thread, and what it starts, be in namespaces of their own.
    pub(super) fn enter_namespaces(&self) -> io::Result<()> {
        namespaces::enter(&self.program, &self.within_reach)
    }
}

fn confine(command: &mut Command, (user, limits): (User, Limits), files: Vec<RawFd>, walls: Walls) {
    // A daemon that is not root, as in tests, runs helpers as its own user.
    let changes_user = geteuid().is_root();
    let groups = [Gid::from_raw(user.gid)];
    let uid = Uid::from_raw(user.uid);
    let gid = groups[0];
    let limits = [
        (Resource::RLIMIT_AS, limits.address_space),
        (Resource::RLIMIT_CPU, limits.cpu),
        (Resource::RLIMIT_FSIZE, limits.file),
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_NOFILE, DESCRIPTORS),
    ];
    // The user of a daemon that is not root has other processes.
    let processes = changes_user.then_some((Resource::RLIMIT_NPROC, PROCESSES));
    let begin = move || {
        keep_only(&files)?;
        if walls.has_namespaces {
            namespaces::mount_processes()?;
        }
        prefer_as_victim();
        drop_bounding_set()?;
        if changes_user {
            setgroups(&groups)?;
            setresgid(gid, gid, gid)?;
            setresuid(uid, uid, uid)?;
        }
        drop_capabilities()?;
        set_no_new_privs()?;
        if let Some(wall) = &walls.landlock {
            enter(wall)?;
        }
        for (resource, limit) in limits.into_iter().chain(processes) {
            // The signal of CPU time comes at the soft limit, and a kill a second later.
            let hard = limit.saturating_add(u64::from(resource == Resource::RLIMIT_CPU));
            setrlimit(resource, limit, hard)?;
        }
        calls::restrict(walls.calls)
    };
    // SAFETY: the closure makes system calls only; an error becomes a number without allocation.
    unsafe { command.pre_exec(begin) };
}

/// Makes the command leave the daemon's session, without any descriptor of it.
pub(super) fn detach(command: &mut Command) {
    let begin = || {
        keep_only(&[])?;
        setsid()?;
        Ok(())
    };
    // SAFETY: the closure makes system calls only; an error becomes a number without allocation.
    unsafe { command.pre_exec(begin) };
}

/// Gives this thread, which has just begun and owns no descriptor, a table of its own, in which
/// nothing is open but the standard streams.
pub(super) fn leave_descriptors() -> io::Result<()> {
    // SAFETY: the call takes no pointer. The descriptors of other threads stay in their table, which
    // this thread leaves.
    let left = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_UNSHARE,
        )
    };
    Errno::result(left)?;
    Ok(())
}

/// Where memory is short the kernel ends this process first, whatever protects the daemon. A kernel that refuses that
/// keeps no program from running.
fn prefer_as_victim() {
    let opened = open(OOM_SCORE, OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty());
    let _ = opened.and_then(|file| write(file, b"1000"));
}

/// Every descriptor is closed by the execution but the standard streams and these.
fn keep_only(files: &[RawFd]) -> io::Result<()> {
    // SAFETY: the call takes no pointer and marks descriptors of this process only, which is
    // about to execute another program.
    let marked = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    match Errno::result(marked) {
        // Before Linux 5.11 there is the flag that each descriptor has got when it was opened.
        Ok(_) | Err(Errno::ENOSYS | Errno::EINVAL) => {}
        Err(errno) => return Err(errno.into()),
    }
    for file in files {
        // SAFETY: who starts the command keeps the file open.
        let file = unsafe { BorrowedFd::borrow_raw(*file) };
        fcntl(file, F_SETFD(FdFlag::empty()))?;
    }
    Ok(())
}

/// Restricts this process, and what it becomes, to a set of Landlock rules.
fn enter(wall: &OwnedFd) -> io::Result<()> {
    // SAFETY: the call takes no pointer, and the descriptor is open.
    let entered = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, wall.as_raw_fd(), 0) };
    Errno::result(entered)?;
    Ok(())
}

fn drop_bounding_set() -> io::Result<()> {
    for number in 0..64 {
        // SAFETY: the call takes no pointer.
        let dropped = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, number, 0, 0, 0) };
        match Errno::result(dropped) {
            Ok(_) => {}
            // The kernel knows no more; or the daemon has no right to, and then none to lose.
            Err(Errno::EINVAL | Errno::EPERM) => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// `struct __user_cap_header_struct`
#[repr(C)]
struct Header {
    version: u32,
    pid: libc::c_int,
}

fn drop_capabilities() -> io::Result<()> {
    let header = Header {
        version: CAPABILITY_VERSION,
        pid: 0,
    };
    // Effective, permitted and inheritable, for both halves of the numbers.
    let none = [[0_u32; 3]; 2];
    // SAFETY: both have the layout of the kernel's structures, two for this version, and live until
    // the call returns.
    let set = unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) };
    Errno::result(set)?;
    Ok(())
}
