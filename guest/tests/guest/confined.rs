//! Commands with limits.
//!
//! Invariant: as in the other tests; an agent that is not root refuses what needs root.
//! Failure: as in the other tests.

use std::collections::BTreeMap;

use guestapi::{Confinement, Reason, Start, User};
use nix::libc;
use nix::unistd::geteuid;

use crate::host::{Host, command, in_terminal, kept, shell};

/// `CAP_CHOWN`, `CAP_KILL`, `CAP_SETUID`, `CAP_NET_BIND_SERVICE`
const CAPABILITIES: [u32; 4] = [0, 5, 7, 10];

/// `CAP_NET_BIND_SERVICE`
const AMBIENT: u32 = 10;

/// No user of a file.
const UNPRIVILEGED: u32 = 65534;

fn confined(start: Start, uid: u32, confinement: Confinement) -> Start {
    let user = User {
        uid,
        gid: Some(uid),
        ..User::default()
    };
    Start {
        user: Some(user),
        confinement: Some(confinement),
        ..start
    }
}

/// Everything that a kernel may know.
fn all() -> Vec<u32> {
    (0..64).collect()
}

/// A filter that refuses one system call with EPERM.
fn filter(call: libc::c_long) -> Vec<u8> {
    let call = u32::try_from(call).unwrap();
    // Load the number; unless it is this one, skip the next; refuse; allow.
    let program: [(u16, u8, u8, u32); 4] = [
        (0x20, 0, 0, 0),
        (0x15, 0, 1, call),
        (0x06, 0, 0, 0x0005_0001),
        (0x06, 0, 0, 0x7fff_0000),
    ];
    let instructions = program.into_iter().flat_map(|(code, jt, jf, k)| {
        let code = code.to_ne_bytes();
        let k = k.to_ne_bytes();
        [code.as_slice(), &[jt, jf], &k].concat()
    });
    instructions.collect()
}

/// What the kernel says of a command with these limits; `None` when the agent is not root, and the
/// kernel refuses them.
fn status(host: &mut Host, uid: u32, confinement: Confinement) -> Option<BTreeMap<String, String>> {
    let start = confined(command(1, &["cat", "/proc/self/status"]), uid, confinement);
    if !geteuid().is_root() {
        host.send(start);
        assert_eq!(host.refused().reason(), Reason::NoConfinement);
        return None;
    }
    let text = String::from_utf8(host.run(start).stdout).unwrap();
    let fields = text.lines().filter_map(|line| line.split_once(":\t"));
    Some(fields.map(|(k, v)| (k.to_owned(), v.to_owned())).collect())
}

#[test]
fn capabilities_are_those_of_the_confinement() {
    let mut host = Host::connect();
    let confinement = Confinement {
        capabilities: CAPABILITIES.to_vec(),
        ambient: vec![AMBIENT],
        ..Confinement::default()
    };
    let some = "00000000000004a1";
    let one = "0000000000000400";
    for (uid, effective) in [(0, some), (UNPRIVILEGED, one)] {
        for no_new_privileges in [false, true] {
            let confinement = Confinement {
                no_new_privileges,
                ..confinement.clone()
            };
            let Some(status) = status(&mut host, uid, confinement) else {
                continue;
            };
            let expected = [
                ("CapBnd", some),
                ("CapPrm", effective),
                ("CapEff", effective),
                ("CapInh", one),
                ("CapAmb", one),
                ("NoNewPrivs", if no_new_privileges { "1" } else { "0" }),
                ("Seccomp", "0"),
            ];
            for (field, value) in expected {
                assert_eq!(status[field], value, "{field} of {uid}");
            }
        }
    }
    // Nothing at all.
    if let Some(status) = status(&mut host, 0, Confinement::default()) {
        assert_eq!(status["CapBnd"], "0000000000000000");
        assert_eq!(status["CapEff"], "0000000000000000");
    }
    host.disconnect();
}

#[test]
fn the_agent_and_other_commands_have_no_limits() {
    let mut host = Host::connect();
    let read = || std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let limits = |text: &str| {
        let fields = ["Cap", "NoNewPrivs", "Seccomp:"];
        let lines = text.lines();
        let lines = lines.filter(|line| fields.iter().any(|field| line.starts_with(field)));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let confinement = Confinement {
        no_new_privileges: true,
        seccomp: filter(libc::SYS_uname).into(),
        ..Confinement::default()
    };
    status(&mut host, UNPRIVILEGED, confinement);
    let free = host.run(command(2, &["cat", "/proc/self/status"])).stdout;
    let free = String::from_utf8(free).unwrap();
    assert_eq!(limits(&free), limits(&read()));
    host.disconnect();
}

#[test]
fn a_read_only_root_leaves_other_mounts_writable() {
    let mut host = Host::connect();
    let place = tempfile::Builder::new().tempdir_in("/dev/shm").unwrap();
    let script = "touch /vmlet-test-of-a-read-only-root; \
        touch $PLACE/x && echo written; echo > /dev/null && echo device";
    let root = || {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let root = mounts.lines().find(|line| line.contains(" / / "));
        root.unwrap().to_owned()
    };
    let before = root();
    let confinement = Confinement {
        capabilities: all(),
        read_only_root: true,
        ..Confinement::default()
    };
    let mut start = confined(shell(1, script), 0, confinement);
    start.environment = vec![format!("PLACE={}", place.path().display())];
    if geteuid().is_root() {
        for start in [start.clone(), kept(in_terminal(start, 24, 80), "a")] {
            let ended = host.run(start);
            let output = [ended.stdout, ended.stderr].concat();
            let output = String::from_utf8(output).unwrap();
            assert!(output.contains("Read-only file system"), "{output}");
            assert!(output.contains("written"), "{output}");
            assert!(output.contains("device"), "{output}");
        }
    } else {
        host.send(start);
        let refused = host.refused();
        assert_eq!(refused.reason(), Reason::NoConfinement);
        assert!(refused.message.contains("make a mount namespace: EPERM"));
    }
    assert_eq!(root(), before, "that of the agent");
    host.disconnect();
}

#[test]
fn a_filter_refuses_system_calls() {
    let mut host = Host::connect();
    assert_eq!(host.run(command(1, &["uname"])).code, 0);
    let mut session = 2;
    for uid in [0, UNPRIVILEGED] {
        for no_new_privileges in [false, true] {
            let confinement = Confinement {
                // A filter that must be installed before its command loses the right to.
                capabilities: CAPABILITIES.to_vec(),
                no_new_privileges,
                seccomp: filter(libc::SYS_uname).into(),
                ..Confinement::default()
            };
            if status(&mut host, uid, confinement.clone())
                .is_some_and(|status| status["Seccomp"] != "2")
            {
                panic!("no filter");
            }
            if geteuid().is_root() {
                let ended = host.run(confined(command(session, &["uname"]), uid, confinement));
                let error = String::from_utf8(ended.stderr).unwrap();
                assert!(ended.code != 0, "{uid} {no_new_privileges}");
                assert!(error.contains("uname"), "{error}");
            }
            session += 1;
        }
    }
    host.disconnect();
}

#[test]
fn a_confinement_that_the_kernel_refuses_is_refused_with_its_step() {
    let mut host = Host::connect();
    let refusal = |host: &mut Host, confinement| {
        host.send(confined(command(1, &["true"]), 0, confinement));
        let refused = host.refused();
        assert_eq!(refused.reason(), Reason::NoConfinement);
        refused.message
    };
    let of = |seccomp: Vec<u8>| Confinement {
        capabilities: all(),
        no_new_privileges: true,
        seccomp: seccomp.into(),
        ..Confinement::default()
    };
    let message = refusal(&mut host, of(vec![0; 12]));
    assert!(message.contains("the seccomp filter has 12 bytes"));
    let message = refusal(&mut host, of(vec![0; 8 * 4097]));
    assert!(message.contains("at most 4096"), "{message}");
    // A program without a return; it needs no root.
    let message = refusal(&mut host, of(vec![0; 16]));
    let expected = "the kernel of the guest refuses to install the seccomp filter: EINVAL";
    assert!(message.starts_with(expected), "{message}");
    let confinement = Confinement {
        ambient: vec![AMBIENT],
        ..Confinement::default()
    };
    let message = refusal(&mut host, confinement);
    assert!(message.contains("ambient capability 10"), "{message}");
    // A command that does not exist is not mistaken for it.
    let no_command = command(2, &["no-such-command"]);
    let confinement = of(filter(libc::SYS_uname));
    host.send(confined(no_command, geteuid().as_raw(), confinement));
    assert_eq!(host.refused().reason(), Reason::NoCommand);
    host.disconnect();
}
