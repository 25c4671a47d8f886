//! The program as the daemon starts it, up to the point where it needs privileges.
//!
//! Invariant: what is missing or forbidden ends it before it opens the directory.
//! Failure: the exit code, or the line on standard error.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
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
    let user = "--uid=65534";
    let group = "--gid=65534";
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

fn open(arguments: &[&str], socket: Stdio) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_vmlet-virtiofsd"));
    let program = program.args(["open", "--uid=1234", "--gid=1235"]);
    let program = program.args(arguments).stdin(Stdio::null()).stdout(socket);
    program.stderr(Stdio::piped()).output().unwrap()
}

#[test]
fn a_path_that_is_no_directory_is_not_opened() {
    let (_ours, theirs) = fdpass::socketpair().unwrap();
    let theirs = OwnedFd::from(theirs);
    for (path, words) in [
        ("/nonexistent", "ENOENT"),
        ("/etc/passwd", "it is no directory"),
    ] {
        let socket = theirs.try_clone().unwrap().into();
        let output = open(&["--directory", path], socket);
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8(output.stderr).unwrap();
        let begins = format!("vmlet-virtiofsd: {path}: ");
        assert!(text.starts_with(&begins) && text.contains(words), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[test]
#[ignore = "needs root"]
fn an_open_directory_has_other_owners_its_access_and_nothing_above_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    std::fs::create_dir(&path).unwrap();
    let owned_by = |gid| std::os::unix::fs::chown(&path, Some(0), Some(gid)).unwrap();
    let opened = |further: &[&str]| {
        let (ours, theirs) = fdpass::socketpair().unwrap();
        let directory = ["--directory", path.to_str().unwrap()];
        let output = open(
            &[&directory, further].concat(),
            OwnedFd::from(theirs).into(),
        );
        assert!(output.status.success(), "{output:?}");
        let message = ours.recv(4096).unwrap().unwrap();
        assert_eq!(message.bytes, b"\n");
        File::from(message.fds.into_iter().next().unwrap())
    };
    let below = |directory: &File, name: &str| {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))
    };
    let owner = |directory: &File| {
        let found = directory.metadata().unwrap();
        (found.uid(), found.gid())
    };
    owned_by(0);
    let directory = opened(&[]);
    assert_eq!(owner(&directory), (1234, 1235));
    std::fs::write(below(&directory, "file"), "x").unwrap();
    let above = std::fs::metadata(below(&directory, "..")).unwrap();
    assert_eq!(above.ino(), std::fs::metadata(&path).unwrap().ino());

    owned_by(7);
    let directory = opened(&["--groups=6,7", "--as-uid=5", "--read-only"]);
    assert_eq!(owner(&directory), (0, 1235));
    let refused = std::fs::write(below(&directory, "other"), "x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
}
