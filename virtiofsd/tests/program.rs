//! The program as the daemon starts it, up to the point where it needs privileges.
//!
//! Invariant: what is missing or forbidden ends it before it opens the directory.
//! Failure: the exit code, or the line on standard error.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::{Command, Output, Stdio};

fn run(arguments: &[&str], socket: Stdio) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_vmlet-virtiofsd"));
    let program = program.args(["serve", "--tag=vmlet-0", "--directory=/nonexistent"]);
    let program = program.args(arguments).stdin(Stdio::null()).stdout(socket);
    program.stderr(Stdio::piped()).output().unwrap()
}

fn listener(dir: &tempfile::TempDir) -> Stdio {
    let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
    OwnedFd::from(listener).into()
}

#[test]
fn it_never_serves_as_root() {
    let dir = tempfile::tempdir().unwrap();
    let (user, group) = ("--uid=65534", "--gid=65534");
    for arguments in [
        ["--uid=0", group, "--groups=7"],
        [user, "--gid=0", "--groups=7"],
        [user, group, "--groups=7,0"],
        // The kernel takes this number for "no change".
        ["--uid=4294967295", group, "--groups=7"],
        [user, "--gid=4294967295", "--groups=7"],
        [user, group, "--groups=4294967295"],
    ] {
        let output = run(&arguments, listener(&dir));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("invalid value"), "{text}");
        std::fs::remove_file(dir.path().join("socket")).unwrap();
    }
}

#[test]
fn it_needs_a_listening_socket() {
    let output = run(&["--uid=65534", "--gid=65534"], Stdio::null());
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 1, "{text}");
    assert!(lines[0].contains("not a listening socket"), "{text}");
}

#[test]
fn a_directory_that_is_not_there_ends_it_with_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(&["--uid=65534", "--gid=65534"], listener(&dir));
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.starts_with("vmlet-virtiofsd: enter the namespaces"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");
}
