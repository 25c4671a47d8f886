//! Shells in the place of programs, by both ways of a start.
//!
//! Invariant: what the kernel lists of descriptors and processes counts.
//! Failure: a failing test shows the list.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use rstest::rstest;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

const TIMEOUT: Duration = Duration::from_secs(60);

/// How a program starts.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// On a thread with a table of its own.
    Apart,
    /// As on a kernel that has no such threads.
    Plain,
}

fn shell(script: &str) -> Start {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    let streams = Streams {
        stdin: Stream::Pipe,
        stdout: Stream::Pipe,
        stderr: Stream::Null,
    };
    Start::new(command, streams)
}

fn begin(way: Way, start: Start) -> io::Result<Child> {
    match way {
        Way::Apart => start.start_by(Some(&Starter::begin()?)),
        Way::Plain => start.start_by(None),
    }
}

/// The descriptors of this thread, beside that of the listing.
fn listed() -> Vec<RawFd> {
    let entries = std::fs::read_dir("/proc/thread-self/fd").unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name());
    let numbers = names.map(|name| name.to_str().unwrap().parse().unwrap());
    let mut numbers: Vec<RawFd> = numbers.collect();
    numbers.sort_unstable();
    // That of the listing is closed by now.
    numbers.retain(|number| Path::new(&format!("/proc/thread-self/fd/{number}")).exists());
    numbers
}

/// Waits until a process is no child any more, not even a dead one.
async fn until_reaped(pid: u32) {
    let directory = format!("/proc/{pid}");
    let waiting = async {
        while Path::new(&directory).exists() {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(TIMEOUT, waiting).await;
    waited.unwrap_or_else(|_| panic!("{:?}", std::fs::read_to_string(format!("{directory}/stat"))));
}

#[test]
fn a_fork_copies_no_descriptor_of_the_daemon() {
    let before: Vec<File> = (0..100).map(|_| tempfile::tempfile().unwrap()).collect();
    let starter = Starter::begin().unwrap();
    let after: Vec<File> = (0..100).map(|_| tempfile::tempfile().unwrap()).collect();
    let mut given = tempfile::tempfile().unwrap();
    given.write_all(b"given").unwrap();
    let number = given.as_raw_fd();
    let work = move |answer: &dyn Fn(_)| {
        let alone = listed();
        let fetched = Table::open(number + 1).and_then(|daemon| daemon.fetch_as(number));
        let text =
            fetched.map(|_fetched| (listed(), std::fs::read(super::super::path_of(&number))));
        answer((alone, text));
    };
    let (alone, with_it) = starter.ask(work).unwrap();
    assert_eq!(alone, [0, 1, 2]);
    let (listed_with_it, text) = with_it.unwrap();
    assert_eq!(listed_with_it, [0, 1, 2, number]);
    assert_eq!(text.unwrap(), b"given");
    // Each thread has a table of its own, and ours is whole.
    let alone = starter.ask(|answer: &dyn Fn(_)| answer(listed())).unwrap();
    assert_eq!(alone, [0, 1, 2]);
    for file in before.iter().chain(&after).chain([&given]) {
        file.metadata().unwrap();
    }
}

#[rstest]
#[tokio::test]
async fn a_program_has_its_streams_and_its_end_is_told(#[values(Way::Apart, Way::Plain)] way: Way) {
    // `ls` itself has the directory open.
    let mut child = begin(way, shell("ls -1 /proc/$$/fd; cat; exit 7")).unwrap();
    let mut stdin = child.pipes.stdin.take().unwrap();
    stdin.write_all(b"received").await.unwrap();
    drop(stdin);
    let pid = child.id().unwrap();
    let output = child.wait_with_output().await.unwrap();
    assert_eq!(output.status.code(), Some(7));
    let written = String::from_utf8_lossy(&output.stdout);
    match way {
        Way::Apart => assert_eq!(written, "0\n1\n2\nreceived"),
        // A descriptor that this test has from its own parent may be among them.
        Way::Plain => assert!(written.ends_with("\nreceived"), "{written}"),
    }
    until_reaped(pid).await;
}

#[rstest]
#[tokio::test]
async fn a_program_ends_with_its_handle(#[values(Way::Apart, Way::Plain)] way: Way) {
    let mut child = begin(way, shell("exec cat")).unwrap();
    let pid = child.id().unwrap();
    let stdin = child.pipes.stdin.take();
    let stdout = child.pipes.stdout.take();
    drop(child);
    let mut written = Vec::new();
    let read = stdout.unwrap().read_to_end(&mut written).await.unwrap();
    assert_eq!(read, 0);
    until_reaped(pid).await;
    drop(stdin);
}

#[rstest]
#[tokio::test]
async fn a_program_outlives_its_handle(#[values(Way::Apart, Way::Plain)] way: Way) {
    let mut child = begin(way, shell("exec cat")).unwrap();
    let pid = child.id().unwrap();
    let stdin = child.pipes.stdin.take();
    let stdout = child.pipes.stdout.take();
    child.outlive();
    drop(child);
    let mut stdin = stdin.unwrap();
    stdin.write_all(b"still there").await.unwrap();
    drop(stdin);
    let mut written = Vec::new();
    stdout.unwrap().read_to_end(&mut written).await.unwrap();
    assert_eq!(written, b"still there");
    until_reaped(pid).await;
}

#[rstest]
#[tokio::test]
async fn a_program_that_is_missing_does_not_start(#[values(Way::Apart, Way::Plain)] way: Way) {
    let start = Start::new(Command::new("/no/such/program"), Streams::default());
    let error = begin(way, start).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
}

#[tokio::test]
async fn a_start_whose_caller_has_left_ends_the_program() {
    let (ours, theirs) = io::pipe().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "echo $$; exec cat"]);
    let streams = Streams {
        stdin: Stream::Pipe,
        stdout: Stream::Open(theirs.into()),
        stderr: Stream::Null,
    };
    let begin = Box::pin(Start::new(command, streams).begin());
    // Polled once.
    assert!(futures_util::poll!(begin).is_pending());
    let mut written = String::new();
    let mut ours = Receiver::from_owned_fd(ours.into()).unwrap();
    let read = ours.read_to_string(&mut written);
    tokio::time::timeout(TIMEOUT, read)
        .await
        .expect("its end")
        .unwrap();
}

/// A handler would write to a descriptor of the daemon's table.
#[test]
fn a_thread_that_starts_a_program_takes_no_signal() {
    let starter = Starter::begin().unwrap();
    let mask = |answer: &dyn Fn(_)| answer(SigSet::thread_get_mask().unwrap());
    let masked = starter.ask(mask).unwrap();
    for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGHUP] {
        assert!(masked.contains(signal), "{signal}");
    }
}

#[rstest]
#[tokio::test]
async fn a_program_begins_with_no_signal_blocked(#[values(Way::Apart, Way::Plain)] way: Way) {
    let mut child = begin(way, shell("grep SigBlk /proc/self/status")).unwrap();
    drop(child.pipes.stdin.take());
    let output = child.wait_with_output().await.unwrap();
    assert_eq!(output.stdout, b"SigBlk:\t0000000000000000\n");
}
