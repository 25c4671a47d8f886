//! The profile of this runtime, `RuntimeDefault`.
//!
//! It refuses the calls that administer the machine, load code into its kernel, look into other processes or
//! make namespaces, to processes without the capability for them: the kernel refuses most of them,
//! too, but after more code. All other calls are allowed: a new kernel's new calls work.
//!
//! Invariant: a process that has the capability of a call may make it. Source: the calls that the
//! default profiles of Docker and containerd leave out, by their documentation.
//! Failure: libseccomp's reason.

use bytes::Bytes;
use libseccomp::{ScmpAction, ScmpArch, ScmpArgCompare, ScmpCompareOp};

use super::{EPERM, Rules};

const ENOSYS: i32 = 38;

const DAC_READ_SEARCH: u32 = 2;
const SYS_MODULE: u32 = 16;
const SYS_RAWIO: u32 = 17;
const SYS_PTRACE: u32 = 19;
const SYS_PACCT: u32 = 20;
const SYS_ADMIN: u32 = 21;
const SYS_BOOT: u32 = 22;
const SYS_NICE: u32 = 23;
const SYS_TIME: u32 = 25;
const SYS_TTY_CONFIG: u32 = 26;
const SYSLOG: u32 = 34;
const PERFMON: u32 = 38;
const BPF: u32 = 39;

/// Calls that each of these capabilities allows.
const BY_CAPABILITY: &[(&[u32], &[&str])] = &[
    (&[DAC_READ_SEARCH], &["open_by_handle_at"]),
    (
        &[SYS_ADMIN],
        &[
            "fsconfig",
            "fsmount",
            "fsopen",
            "fspick",
            "lookup_dcookie",
            "mount",
            "mount_setattr",
            "move_mount",
            "open_tree",
            "pivot_root",
            "quotactl",
            "quotactl_fd",
            "setdomainname",
            "sethostname",
            "setns",
            "swapoff",
            "swapon",
            "umount",
            "umount2",
            "unshare",
        ],
    ),
    (&[SYS_ADMIN, BPF], &["bpf"]),
    (&[SYS_ADMIN, PERFMON], &["perf_event_open"]),
    (&[SYS_ADMIN, SYSLOG], &["syslog"]),
    (&[SYS_BOOT], &["kexec_file_load", "kexec_load", "reboot"]),
    (
        &[SYS_MODULE],
        &[
            "create_module",
            "delete_module",
            "finit_module",
            "init_module",
        ],
    ),
    (
        &[SYS_NICE],
        &["get_mempolicy", "mbind", "move_pages", "set_mempolicy"],
    ),
    (&[SYS_PACCT], &["acct"]),
    (
        &[SYS_PTRACE],
        &["kcmp", "pidfd_getfd", "process_madvise", "userfaultfd"],
    ),
    (&[SYS_RAWIO], &["ioperm", "iopl"]),
    (
        &[SYS_TIME],
        &["clock_settime", "clock_settime64", "settimeofday", "stime"],
    ),
    (&[SYS_TTY_CONFIG], &["vhangup"]),
];

/// Calls that no container needs: keys are not separated by container, the rest is obsolete or has
/// a history of defects.
const NEVER: &[&str] = &[
    "_sysctl",
    "add_key",
    "get_kernel_syms",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "keyctl",
    "nfsservctl",
    "query_module",
    "request_key",
    "sysfs",
    "uselib",
    "ustat",
    "vm86",
    "vm86old",
];

/// The flags of `clone` that make namespaces.
const NAMESPACES: [u64; 7] = [
    0x0002_0000,
    0x0200_0000,
    0x0400_0000,
    0x0800_0000,
    0x1000_0000,
    0x2000_0000,
    0x4000_0000,
];

/// The filter of a process with these capabilities.
pub(super) fn filter(capabilities: &[u32]) -> Result<Bytes, String> {
    let mut rules = Rules::new(ScmpAction::Allow)?;
    for arch in further_architectures() {
        rules.add_arch(*arch)?;
    }
    let has = |capability: &u32| capabilities.contains(capability);
    let refused = ScmpAction::Errno(EPERM);
    let without = BY_CAPABILITY.iter().filter(|(any, _)| !any.iter().any(has));
    let names = without.flat_map(|(_, names)| *names).chain(NEVER);
    for name in names {
        rules.add(name, refused, &[])?;
    }
    if !has(&SYS_ADMIN) {
        for flag in NAMESPACES {
            let has_flag = ScmpArgCompare::new(0, ScmpCompareOp::MaskedEqual(flag), flag);
            rules.add("clone", refused, &[has_flag])?;
        }
        // Its flags are in memory, which a filter does not see: programs use the other call then.
        rules.add("clone3", ScmpAction::Errno(ENOSYS), &[])?;
    }
    rules.compile()
}

/// Others whose programs the processor runs: their calls have other numbers.
const fn further_architectures() -> &'static [ScmpArch] {
    if cfg!(target_arch = "x86_64") {
        &[ScmpArch::X86, ScmpArch::X32]
    } else if cfg!(target_arch = "aarch64") {
        &[ScmpArch::Arm]
    } else {
        &[]
    }
}
