//! A script in the place of a helper reports how it was started.
//!
//! Invariant: what the kernel says about the process counts, not what was requested.
//! Failure: a failing test shows the report.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

const UNPRIVILEGED: User = User {
    uid: 65534,
    gid: 65534,
};

const LIMITS: Limits = Limits {
    address_space: 512 << 20,
    cpu: 7,
    file: 4096,
};

/// A script that any user may run.
fn script(dir: &std::path::Path, text: &str) -> PathBuf {
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.join("helper");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// As an unprivileged user.
fn helper(dir: &std::path::Path, text: &str) -> Helper {
    Helper::as_user(script(dir, text), UNPRIVILEGED)
}

async fn report(text: &str, files: Vec<File>) -> (ExitStatus, String) {
    let dir = tempfile::tempdir().unwrap();
    report_of(&helper(dir.path(), text), files).await
}

async fn report_of(helper: &Helper, files: Vec<File>) -> (ExitStatus, String) {
    let streams = Streams {
        stdout: Stream::Pipe,
        ..Streams::default()
    };
    let start = helper.start(LIMITS, files, Vec::new(), streams);
    let output = start.begin().await.unwrap().wait_with_output();
    let output = output.await.unwrap();
    (output.status, String::from_utf8(output.stdout).unwrap())
}

/// A helper that waits, and what it printed before.
async fn waiting(helper: &Helper, files: Vec<File>) -> (Child, String) {
    let streams = Streams {
        stdin: Stream::Pipe,
        stdout: Stream::Pipe,
        ..Streams::default()
    };
    let start = helper.start(LIMITS, files, Vec::new(), streams);
    let mut child = start.begin().await.unwrap();
    let stdin = child.pipes.stdin.as_mut().unwrap();
    stdin.write_all(b"END").await.unwrap();
    let mut text = String::new();
    let mut piece = [0; 512];
    while !text.ends_with("END") {
        let stdout = child.pipes.stdout.as_mut().unwrap();
        let read = stdout.read(&mut piece).await.unwrap();
        assert!(read > 0, "{text}");
        text.push_str(std::str::from_utf8(&piece[..read]).unwrap());
    }
    (child, text.trim_end_matches("END").to_owned())
}

/// What the kernel has of a process.
fn of_process(child: &Child, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{}/{name}", child.id().unwrap()))
}

fn line<'a>(report: &'a str, begin: &str) -> Vec<&'a str> {
    let line = report.lines().find(|line| line.starts_with(begin));
    line.unwrap_or_else(|| panic!("{begin} is not in {report}"))[begin.len()..]
        .split_whitespace()
        .collect()
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_helper_has_no_privilege_and_all_limits() {
    let dir = tempfile::tempdir().unwrap();
    let (child, _) = waiting(&helper(dir.path(), "exec cat"), Vec::new()).await;
    let read = |name| std::fs::read_to_string(of_process(&child, name)).unwrap();
    let status = read("status");
    for ids in ["Uid:", "Gid:"] {
        assert_eq!(line(&status, ids), ["65534"; 4], "{ids}");
    }
    assert_eq!(line(&status, "Groups:"), ["65534"]);
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        assert_eq!(line(&status, set), ["0000000000000000"], "{set}");
    }
    assert_eq!(line(&status, "NoNewPrivs:"), ["1"]);
    assert_eq!(line(&status, "Seccomp:"), ["2"], "it has no filter");
    let limits = read("limits");
    let limit = |name| line(&limits, name)[..2].join(" ");
    assert_eq!(limit("Max address space"), "536870912 536870912");
    assert_eq!(limit("Max cpu time"), "7 8");
    assert_eq!(limit("Max file size"), "4096 4096");
    assert_eq!(limit("Max core file size"), "0 0");
    assert_eq!(limit("Max processes"), "256 256");
    assert_eq!(read("oom_score_adj"), "1000\n");
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_helper_inherits_its_files_and_nothing_else() {
    // A descriptor that lacks the flag, as a careless library would leave it.
    let careless = tempfile::tempfile().unwrap();
    nix::fcntl::fcntl(&careless, nix::fcntl::F_SETFD(nix::fcntl::FdFlag::empty())).unwrap();
    let mut given = tempfile::tempfile().unwrap();
    given.write_all(b"hello").unwrap();
    given
        .set_permissions(std::fs::Permissions::from_mode(0o644))
        .unwrap();
    let own = given.as_raw_fd().to_string();
    let path = path_of(&given);
    let dir = tempfile::tempdir().unwrap();
    let text = format!("cat {path}; echo; env; pwd; exec cat");
    let (child, said) = waiting(&helper(dir.path(), &text), vec![given]).await;
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some("hello"), "{said}");
    let left: Vec<_> = lines
        .filter(|line| {
            !["PATH=", "LC_ALL=C", "PWD=/", "OLDPWD", "_="]
                .iter()
                .any(|known| line.starts_with(known))
        })
        .collect();
    assert_eq!(left, ["/"], "{said}");
    let open = std::fs::read_dir(of_process(&child, "fd")).unwrap();
    let names = open.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    let mut expected = ["0", "1", "2", &own];
    expected.sort_unstable();
    assert_eq!(names, expected);
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_helper_shares_no_namespace_with_the_daemon_and_sees_no_file_of_the_node() {
    let dir = tempfile::tempdir().unwrap();
    let (child, _) = waiting(&helper(dir.path(), "exec cat"), Vec::new()).await;
    for kind in ["ipc", "mnt", "net", "pid", "uts"] {
        let theirs = std::fs::read_link(of_process(&child, &format!("ns/{kind}"))).unwrap();
        let ours = std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
        assert_ne!(theirs, ours, "{kind}");
    }
    let status = std::fs::read_to_string(of_process(&child, "status")).unwrap();
    assert_eq!(line(&status, "NSpid:").last(), Some(&"1"), "{status}");
    let links = std::fs::read_to_string(of_process(&child, "net/dev")).unwrap();
    let links = links.lines().skip(2).filter(|link| !link.contains("lo:"));
    assert_eq!(links.count(), 0, "it has a network");

    let mounts = std::fs::read_to_string(of_process(&child, "mountinfo")).unwrap();
    let script = dir.path().join("helper");
    let parts = mounts.lines().map(|mount| {
        let parts: Vec<_> = mount.split(' ').collect();
        (parts[4], parts[5])
    });
    for (at, options) in parts {
        let is_system =
            at == "/" || namespaces::SHOWN.contains(&at) || at == script.to_str().unwrap();
        assert!(
            is_system || at == "/proc" || wall::DEVICES.contains(&at),
            "{mounts}"
        );
        assert!(!is_system || options.starts_with("ro,"), "{mounts}");
    }
    let ours = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!ours.contains("nr_inodes=1k"), "{ours}");
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_helper_makes_no_socket_and_no_namespace_and_looks_into_no_process() {
    let text = "\
        (exec 3<>/dev/tcp/127.0.0.1/9) 2>&1\n\
        unshare --net true 2>&1\n\
        unshare --user true 2>&1\n\
        mount -t tmpfs none /proc 2>&1\n\
        echo /proc/[0-9]*";
    let dir = tempfile::tempdir().unwrap();
    let path = script(dir.path(), "");
    std::fs::write(&path, format!("#!/bin/bash\n{text}\n")).unwrap();
    let (_, said) = report_of(&Helper::as_user(path, UNPRIVILEGED), Vec::new()).await;
    let refused = said.matches("Function not implemented").count();
    assert!(refused >= 3, "{said}");
    let last = said.lines().last().unwrap();
    // The list of processes is closed by Landlock, or has the shell alone.
    assert!(["/proc/[0-9]*", "/proc/1"].contains(&last), "{said}");
}

#[tokio::test]
#[ignore = "needs root"]
async fn no_two_runs_at_a_time_have_the_same_user() {
    let dir = tempfile::tempdir().unwrap();
    let program = Helper::new(script(dir.path(), "exec cat"), UNPRIVILEGED.gid);
    let mut users = Vec::new();
    let mut running = Vec::new();
    for _ in 0..3 {
        let run = program.for_run().unwrap();
        let (child, _) = waiting(&run, Vec::new()).await;
        let status = std::fs::read_to_string(of_process(&child, "status")).unwrap();
        users.push(line(&status, "Uid:")[0].to_owned());
        assert_eq!(line(&status, "Uid:"), vec![run.user().uid.to_string(); 4]);
        running.push((run, child));
    }
    users.sort_unstable();
    users.dedup();
    assert_eq!(users.len(), 3);
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_file_that_grows_too_large_ends_the_helper() {
    let given = tempfile::tempfile().unwrap();
    std::os::unix::fs::fchown(&given, Some(UNPRIVILEGED.uid), None).unwrap();
    let path = path_of(&given);
    let kept = given.try_clone().unwrap();
    let text = format!("exec head -c 100000 /dev/zero >{path}");
    let (status, _) = report(&text, vec![given]).await;
    // The first process of a namespace gets no signal, but an error.
    assert!(!status.success());
    assert_eq!(kept.metadata().unwrap().len(), 4096);
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_helper_reads_no_file_of_root() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    let text = format!("cat {} || echo refused", secret.path().display());
    let (_, said) = report(&text, Vec::new()).await;
    assert_eq!(said, "refused\n");
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_helper_opens_no_file_that_permissions_would_let_it_change() {
    let open = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(open.path(), "kept").unwrap();
    let all = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(open.path(), all).unwrap();
    let path = open.path().display();
    let text = format!("cat {path} || echo unread; (echo changed >{path}) || echo unwritten");
    let dir = tempfile::tempdir().unwrap();
    let helper = helper(dir.path(), &text);
    for helper in [helper.clone().without_landlock(), helper] {
        let (_, said) = report_of(&helper, Vec::new()).await;
        assert_eq!(said, "unread\nunwritten\n", "{helper:?}");
        assert_eq!(std::fs::read(open.path()).unwrap(), b"kept");
    }
}
