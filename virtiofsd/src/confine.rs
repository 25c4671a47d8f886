//! Confines the process to its directory, and gives its privileges up.
//!
//! Invariant: namespaces come first, since they need the privileges; after the change of user no
//! capability is left, and none can be gained. The filter of system calls comes last.
//! Failure: the step that the kernel refused.

use std::os::unix::net::UnixListener;

use anyhow::{Context, Result};
use nix::sys::prctl::set_no_new_privs;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use vhost::vhost_user::Listener;
use virtiofsd::passthrough::{CachePolicy, Config};
use virtiofsd::sandbox::{Sandbox, SandboxMode};
use virtiofsd::seccomp::{SeccompAction, enable_seccomp};
use virtiofsd::soft_idmap::cmdline::IdMap;

use crate::args::Serve;

/// Descriptors that are not for files of the guest.
const OWN_DESCRIPTORS: u64 = 64;

/// How long a guest may rely on what it was last given: changes on the node are visible after that.
const FRESH: std::time::Duration = std::time::Duration::from_secs(1);

/// Enters the namespaces, becomes the user, and describes the share. Returns in a child of this
/// process: the parent waits for its end.
pub(crate) fn enter(args: &Serve, listener: UnixListener) -> Result<(Listener, Config)> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).context("read the limit of open files")?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most).context("raise the limit of open files")?;
    let directory = args.directory.clone();
    let mut sandbox = Sandbox::new(directory, SandboxMode::Namespace, Vec::new(), Vec::new());
    let listener = sandbox.enter(listener.into());
    let listener = listener.context("enter the namespaces")?;
    become_user(args)?;
    let config = Config {
        entry_timeout: FRESH,
        attr_timeout: FRESH,
        cache_policy: CachePolicy::Auto,
        root_dir: sandbox.get_root_dir(),
        proc_sfd_rawfd: sandbox.get_proc_self_fd(),
        proc_mountinfo_rawfd: sandbox.get_mountinfo_fd(),
        announce_submounts: true,
        readdirplus: true,
        clean_noatime: true,
        guest_fd_limit: most.saturating_sub(OWN_DESCRIPTORS),
        uid_map: Some(as_one(args.user.uid, args.guest_uid)),
        gid_map: Some(as_one(args.user.gid, args.guest_gid)),
        ..Config::default()
    };
    Ok((listener, config))
}

fn become_user(args: &Serve) -> Result<()> {
    let groups: Vec<_> = args.groups.iter().copied().map(Gid::from_raw).collect();
    let uid = Uid::from_raw(args.user.uid);
    let gid = Gid::from_raw(args.user.gid);
    setgroups(&groups).context("give up groups")?;
    setresgid(gid, gid, gid).context("change the group")?;
    setresuid(uid, uid, uid).context("change the user")?;
    set_no_new_privs().context("give up new privileges")
}

/// Leaves this thread, and those that it starts, the system calls that virtiofsd needs: any other one kills the
/// process.
pub(crate) fn filter_calls() -> Result<()> {
    enable_seccomp(SeccompAction::Kill, false).context("filter system calls")
}

/// Every user of the guest acts as this one, which the guest knows by another number. This process
/// cannot act for another user.
fn as_one(id: u32, in_guest: u32) -> Vec<IdMap> {
    vec![
        IdMap::SquashGuest {
            from_guest: 0,
            to_host: id,
            count: u32::MAX,
        },
        IdMap::Host {
            from_host: id,
            to_guest: in_guest,
            count: 1,
        },
    ]
}
