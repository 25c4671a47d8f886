//! Descriptors of refused messages: counted, so that none stays behind.
//!
//! Invariant: this is the only test of its binary, because it counts the descriptors of the process
//! and lowers their limit.
//! Failure: a leak shows as a higher count.

// Helpers of tests fail the test by panicking.
#![allow(clippy::unwrap_used)]

use std::os::fd::{AsFd, AsRawFd};

use fdpass::{Error, socketpair};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_refused_message_leaves_no_descriptor_behind() {
    let (a, b) = socketpair().unwrap();
    let file = tempfile::tempfile().unwrap();
    let before = open_descriptors();

    a.send(b"longer than four", &[file.as_fd(); 3]).unwrap();
    assert!(matches!(b.recv(4), Err(Error::Truncated { max: 4 })));
    assert_eq!(open_descriptors(), before, "message too long");

    // Room for two more numbers, so that the kernel delivers a part and reports it.
    let top = nix::unistd::dup(&file).unwrap();
    let limit = u64::try_from(top.as_raw_fd()).unwrap() + 2;
    drop(top);
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, limit, hard).unwrap();
    a.send(b"x", &[file.as_fd(); 5]).unwrap();
    let outcome = b.recv(8);
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    assert!(
        matches!(outcome, Err(Error::DescriptorsLost)),
        "{outcome:?}"
    );
    assert_eq!(open_descriptors(), before, "too few numbers");

    a.send(b"x", &[file.as_fd()]).unwrap();
    assert_eq!(
        b.recv(8).unwrap().unwrap().fds.len(),
        1,
        "the connection works on"
    );
}
