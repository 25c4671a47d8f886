//! The namespaces of a helper, and the files that it sees in them.
//!
//! A thread of its own enters them, and forks: the helper is the first process of a namespace of
//! processes, and sees only itself and what it starts. No file of the node is in its file system but
//! programs and libraries, which it can only read, and devices without content.
//!
//! Invariant: mounts of the node are neither changed nor kept: all of them are private copies, and
//! gone before the helper starts. A helper has its own network without a link, its own messages and
//! shared memory, and no network of the node, of a pod or of another helper.
//! Failure: the step that the kernel refused. Whether it does is tried once ([`probe`]): on such a node
//! helpers run in the namespaces of the daemon, behind the other walls, and the node says so.
#![allow(unsafe_code)] // A mount between fork and execution has no safe form; the comment states why it is sound.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::errno::Errno;
use nix::libc;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{chdir, pivot_root};

use super::wall::DEVICES;

/// Where the root directory is built: every node has it, and it is hidden meanwhile.
const SITE: &str = "/proc";

/// The processes of a helper.
const PROCESSES: &CStr = c"/proc";

/// Programs and libraries, and what the loader looks up.
pub(super) const SHOWN: [&str; 8] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
];

/// No program is there: its absence is what the kernel finds after all else has succeeded.
const NOWHERE: &str = "/none";

/// Has this thread, and what it starts, be in namespaces of their own, with a root directory in which
/// `within_reach` can be changed, and the program is. Only for a thread that ends after it has started that.
pub(super) fn enter(program: &Path, within_reach: &[PathBuf]) -> io::Result<()> {
    let apart = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS;
    unshare(apart).map_err(failed("leave the namespaces of the daemon"))?;
    // That of this thread alone, now: others may look into the directories.
    let before = umask(Mode::from_bits_truncate(0o022));
    let none = None::<&Path>;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(none, "/", none, private, none).map_err(failed("copy the mounts"))?;
    let site = Path::new(SITE);
    let kind = Some("tmpfs");
    let size = Some("size=64k,nr_inodes=1k,mode=755");
    mount(kind, site, kind, plain(), size).map_err(failed("make a root directory"))?;
    for path in SHOWN {
        show(site, Path::new(path), MsFlags::MS_RDONLY)?;
    }
    let all = DEVICES.iter().map(Path::new);
    for path in all.chain(within_reach.iter().map(PathBuf::as_path)) {
        show(site, path, MsFlags::empty())?;
    }
    let is_shown = |path: &Path| {
        let path = path.strip_prefix("/").unwrap_or(path);
        site.join(path).exists()
    };
    if program.is_absolute() && !is_shown(program) {
        show(site, program, MsFlags::MS_RDONLY)?;
    }
    std::fs::create_dir_all(site.join("proc"))?;

    // The root of the node is then where the new one is, and goes.
    chdir(site)?;
    pivot_root(".", ".").map_err(failed("enter the root directory"))?;
    umount2(".", MntFlags::MNT_DETACH).map_err(failed("leave the mounts of the node"))?;
    chdir("/")?;
    let closed = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY | plain();
    mount(none, "/", none, closed, none).map_err(failed("protect the root directory"))?;
    umask(before);
    Ok(())
}

const fn plain() -> MsFlags {
    MsFlags::MS_NOSUID
        .union(MsFlags::MS_NODEV)
        .union(MsFlags::MS_NOEXEC)
}

/// Shows a file or a directory of the node in the new root directory, if it is there.
fn show(site: &Path, path: &Path, flags: MsFlags) -> io::Result<()> {
    let there = match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        there => there?,
    };
    let at = site.join(path.strip_prefix("/").map_err(io::Error::other)?);
    if let Some(above) = at.parent() {
        std::fs::create_dir_all(above)?;
    }
    if there.is_symlink() {
        return std::os::unix::fs::symlink(path.read_link()?, at);
    }
    if there.is_dir() {
        std::fs::create_dir_all(&at)?;
    } else {
        File::create(&at)?;
    }
    let none = None::<&Path>;
    let bind = MsFlags::MS_BIND;
    mount(Some(path), &at, none, bind, none).map_err(failed("show the system"))?;
    let flags = bind | MsFlags::MS_REMOUNT | MsFlags::MS_NOSUID | flags;
    mount(none, &at, none, flags, none).map_err(failed("protect the system"))?;
    Ok(())
}

/// Makes the first process of a namespace see its processes: itself. Between fork and execution.
pub(super) fn mount_processes() -> io::Result<()> {
    let kind = c"proc".as_ptr();
    let flags = plain().bits();
    // SAFETY: all are strings that end in zero and live as long as the program; the kernel reads no
    // data where there are none.
    let mounted = unsafe { libc::mount(kind, PROCESSES.as_ptr(), kind, flags, std::ptr::null()) };
    Errno::result(mounted)?;
    Ok(())
}

/// Tries whether a helper can have namespaces, on a thread that ends afterwards.
pub(super) fn probe() -> io::Result<()> {
    enter(Path::new(NOWHERE), &[])?;
    let mut command = Command::new(NOWHERE);
    // SAFETY: the closure makes one system call, by constants.
    unsafe { command.pre_exec(mount_processes) };
    match command.spawn() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io::Error::new(
            error.kind(),
            format!("failed to mount its processes: {error}"),
        )),
        Ok(mut child) => child.wait().map(drop),
    }
}

fn failed(what: &'static str) -> impl Fn(Errno) -> io::Error {
    move |errno| {
        let error = io::Error::from(errno);
        io::Error::new(error.kind(), format!("failed to {what}: {error}"))
    }
}
