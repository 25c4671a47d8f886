//! A script in the place of a helper reports how it was started.
//!
//! Invariant: what the kernel says about the process counts, not what was requested.
//! Failure: a failing test shows the report.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;

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

async fn report(text: &str, files: Vec<File>) -> (ExitStatus, String) {
    let dir = tempfile::tempdir().unwrap();
    // The report is read from there.
    let helper = Helper::new(script(dir.path(), text), UNPRIVILEGED).reaching("/proc");
    let streams = Streams {
        stdout: Stream::Pipe,
        ..Streams::default()
    };
    let start = helper.start(LIMITS, files, Vec::new(), streams);
    let output = start.begin().await.unwrap().wait_with_output();
    let output = output.await.unwrap();
    (output.status, String::from_utf8(output.stdout).unwrap())
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
    let (_, status) = report("exec cat /proc/self/status /proc/self/limits", Vec::new()).await;
    for ids in ["Uid:", "Gid:"] {
        assert_eq!(line(&status, ids), ["65534"; 4], "{ids}");
    }
    assert_eq!(line(&status, "Groups:"), ["65534"]);
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        assert_eq!(line(&status, set), ["0000000000000000"], "{set}");
    }
    assert_eq!(line(&status, "NoNewPrivs:"), ["1"]);
    let limit = |name| line(&status, name)[..2].join(" ");
    assert_eq!(limit("Max address space"), "536870912 536870912");
    assert_eq!(limit("Max cpu time"), "7 8");
    assert_eq!(limit("Max file size"), "4096 4096");
    assert_eq!(limit("Max core file size"), "0 0");
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
    let (own, path) = (given.as_raw_fd().to_string(), path_of(&given));
    // `ls` itself has the directory open.
    let text = format!("cat {path}; echo; env; pwd; ls -1 /proc/$$/fd");
    let (_, said) = report(&text, vec![given]).await;
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some("hello"), "{said}");
    let left: Vec<_> = lines
        .filter(|line| {
            !["PATH=", "LC_ALL=C", "PWD=/", "OLDPWD", "_="]
                .iter()
                .any(|known| line.starts_with(known))
        })
        .collect();
    assert_eq!(left[0], "/", "{said}");
    // The shell reads its script from a descriptor of its own.
    let descriptors: Vec<_> = left[1..]
        .iter()
        .filter(|fd| **fd != "10" && **fd != "255")
        .collect();
    let mut expected = ["0", "1", "2", &own];
    expected.sort_unstable();
    assert_eq!(descriptors, expected.iter().collect::<Vec<_>>(), "{said}");
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
    assert_eq!(status.signal(), Some(libc::SIGXFSZ));
    assert_eq!(
        limit_that_ended(status),
        Some("wrote more than the disk may take")
    );
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
    if wall::around("sh".as_ref(), &[] as &[File], &[])
        .unwrap()
        .is_none()
    {
        // This kernel has no Landlock.
        return;
    }
    let open = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(open.path(), "kept").unwrap();
    let all = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(open.path(), all).unwrap();
    let path = open.path().display();
    let text = format!("cat {path} || echo unread; (echo changed >{path}) || echo unwritten");
    let (_, said) = report(&text, Vec::new()).await;
    assert_eq!(said, "unread\nunwritten\n");
    assert_eq!(std::fs::read(open.path()).unwrap(), b"kept");
}
