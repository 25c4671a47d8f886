//! The system calls of a helper.
//!
//! Invariant: the list has what programs need that read and write open files, beside what starts and
//! ends processes and threads. Every other call is answered as by a kernel that does not know it:
//! libraries then do without. No call of the list makes a socket or a namespace, mounts, looks into
//! another process, loads code into the kernel, or reaches its keys; io_uring is not among them.
//! Failure: a filter that cannot be made keeps helpers from starting.
#![allow(unsafe_code)] // The request to the kernel has no safe form; the comment states why it is sound.

use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::sync::LazyLock;

use libseccomp::{ScmpAction, ScmpArgCompare, ScmpCompareOp, ScmpFilterContext, ScmpSyscall};
use nix::errno::Errno;
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};

/// Calls that a helper may make.
const ALLOWED: &[&str] = &[
    // Memory.
    "brk",
    "madvise",
    "membarrier",
    "mincore",
    "mmap",
    "mprotect",
    "mremap",
    "munmap",
    "msync",
    // Files.
    "access",
    "chdir",
    "close",
    "close_range",
    "copy_file_range",
    "dup",
    "dup2",
    "dup3",
    "faccessat",
    "faccessat2",
    "fadvise64",
    "fallocate",
    "fcntl",
    "fdatasync",
    "flock",
    "fstat",
    "fstatfs",
    "fsync",
    "ftruncate",
    "getcwd",
    "getdents64",
    "ioctl",
    "lseek",
    "lstat",
    "newfstatat",
    "open",
    "openat",
    "openat2",
    "pipe",
    "pipe2",
    "pread64",
    "preadv",
    "preadv2",
    "pwrite64",
    "pwritev",
    "pwritev2",
    "read",
    "readahead",
    "readlink",
    "readlinkat",
    "readv",
    "sendfile",
    "splice",
    "stat",
    "statfs",
    "statx",
    "sync_file_range",
    "umask",
    "write",
    "writev",
    // Asynchronous input and output.
    "io_cancel",
    "io_destroy",
    "io_getevents",
    "io_pgetevents",
    "io_setup",
    "io_submit",
    // Events.
    "epoll_create",
    "epoll_create1",
    "epoll_ctl",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "eventfd",
    "eventfd2",
    "poll",
    "ppoll",
    "pselect6",
    "select",
    "signalfd",
    "signalfd4",
    "timerfd_create",
    "timerfd_gettime",
    "timerfd_settime",
    // Time.
    "clock_getres",
    "clock_gettime",
    "clock_nanosleep",
    "gettimeofday",
    "nanosleep",
    "time",
    "times",
    // Signals.
    "alarm",
    "getitimer",
    "kill",
    "pause",
    "restart_syscall",
    "rt_sigaction",
    "rt_sigpending",
    "rt_sigprocmask",
    "rt_sigqueueinfo",
    "rt_sigreturn",
    "rt_sigsuspend",
    "rt_sigtimedwait",
    "setitimer",
    "sigaltstack",
    "tgkill",
    "tkill",
    // Threads and processes: clone see below.
    "arch_prctl",
    "execve",
    "exit",
    "exit_group",
    "fork",
    "futex",
    "futex_waitv",
    "get_robust_list",
    "get_thread_area",
    "getcpu",
    "getegid",
    "geteuid",
    "getgid",
    "getgroups",
    "getpgid",
    "getpgrp",
    "getpid",
    "getppid",
    "getpriority",
    "getresgid",
    "getresuid",
    "getrlimit",
    "getrusage",
    "getsid",
    "gettid",
    "getuid",
    "prctl",
    "prlimit64",
    "rseq",
    "sched_get_priority_max",
    "sched_get_priority_min",
    "sched_getaffinity",
    "sched_getparam",
    "sched_getscheduler",
    "sched_setaffinity",
    "sched_yield",
    "set_robust_list",
    "set_thread_area",
    "set_tid_address",
    "setpgid",
    "vfork",
    "wait4",
    "waitid",
    // What the system is.
    "getrandom",
    "sysinfo",
    "uname",
];

/// The one flag of a new process by which it has new namespaces, as a mask for each.
const NEW_NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

static FILTER: LazyLock<Result<Vec<libc::sock_filter>, String>> =
    LazyLock::new(|| compile().map_err(|e| format!("make the filter of system calls: {e}")));

/// The instructions of the filter.
pub(super) fn filter() -> io::Result<&'static [libc::sock_filter]> {
    let made = FILTER.as_ref();
    made.map(Vec::as_slice)
        .map_err(|reason| io::Error::other(reason.clone()))
}

fn compile() -> io::Result<Vec<libc::sock_filter>> {
    let mut context = ScmpFilterContext::new(ScmpAction::Errno(libc::ENOSYS)).map_err(other)?;
    // One that another architecture has, or that this libseccomp does not know, is none.
    let known = |name: &&str| ScmpSyscall::from_name(name).ok();
    for call in ALLOWED.iter().filter_map(known) {
        context.add_rule(ScmpAction::Allow, call).map_err(other)?;
    }
    // The library falls back to it from clone3, whose flags are in memory, which a filter cannot read.
    let clone = ScmpSyscall::from_name("clone").map_err(other)?;
    let flags = NEW_NAMESPACES.iter().fold(0, |all, flag| all | *flag);
    let mask = u64::from(flags.cast_unsigned());
    let none = ScmpArgCompare::new(0, ScmpCompareOp::MaskedEqual(mask), 0);
    let allowed = context.add_rule_conditional(ScmpAction::Allow, clone, &[none]);
    allowed.map_err(other)?;

    let file = memfd_create(c"calls", MFdFlags::MFD_CLOEXEC)?;
    context.export_bpf(&file).map_err(other)?;
    let mut file = File::from(file);
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let instructions = bytes.chunks_exact(size_of::<libc::sock_filter>());
    Ok(instructions.map(instruction).collect())
}

/// `struct sock_filter`
fn instruction(bytes: &[u8]) -> libc::sock_filter {
    libc::sock_filter {
        code: u16::from_ne_bytes([bytes[0], bytes[1]]),
        jt: bytes[2],
        jf: bytes[3],
        k: u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    }
}

fn other(error: libseccomp::error::SeccompError) -> io::Error {
    io::Error::other(error)
}

/// Leaves this process, which can gain no privileges any more, the calls of a filter.
pub(super) fn restrict(filter: &'static [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(|_| Errno::EINVAL)?,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel reads as many instructions as there are; they live as long as the program.
    let restricted = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        )
    };
    Errno::result(restricted)?;
    Ok(())
}
