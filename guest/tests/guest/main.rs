//! The agent with real processes, behind a socket in the place of a virtio-serial port.
//!
//! Invariant: no test needs root but those that freeze file systems. What a test starts has ended when the test ends.
//! Failure: the message that came in the place of the expected one.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod confined;
mod frozen;
mod host;
mod kept;
mod surroundings;

use std::os::fd::AsFd;
use std::path::Path;

use guestapi::from_guest::Kind;
use guestapi::request::Action;
use guestapi::{
    Close, Reason, ReportFacts, Request, Resize, SESSIONS, Signal, Stream, Terminal, User, VERSION,
    WINDOW,
};
use host::{Ended, Host, PATIENCE, command, in_terminal, kept, shell, with_input};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

fn is_alive(pid: &str) -> bool {
    // A zombie has ended.
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

/// Whether a process that was killed ends: the kernel ends it some time after the signal is sent.
fn has_ended(pid: &str) -> bool {
    let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(Errno::SRCH) => return true,
        Err(error) => panic!("failed to open process {pid:?}: {error}"),
    };
    let timeout = PollTimeout::try_from(PATIENCE).unwrap();
    let mut ended = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    poll(&mut ended, timeout).unwrap() == 1
}

#[test]
fn a_command_has_its_streams_exit_code_environment_and_directory() {
    let mut host = Host::connect();
    let mut start = shell(1, "pwd; echo $NAME $HOME; echo err >&2; exit 7");
    start.directory = "/usr".to_owned();
    start.environment = vec!["NAME=a=b c".to_owned()];
    let ended = host.run(start);
    let home = if Path::new("/root").is_dir() {
        "/root"
    } else {
        "/"
    };
    let expected = Ended {
        stdout: format!("/usr\na=b c {home}\n").into_bytes(),
        stderr: b"err\n".to_vec(),
        code: 7,
    };
    assert_eq!(ended, expected);
    assert_eq!(host.run(shell(2, "kill -9 $$")).code, 128 + 9);
    assert_eq!(host.run(command(3, &["cat"])).stdout, b"", "no input");
    host.disconnect();
}

#[test]
fn a_command_runs_as_its_user_and_an_unknown_user_is_refused() {
    let mut host = Host::connect();
    let mut start = shell(1, "id -u; id -g; id -G; echo $USER");
    start.user = Some(User {
        uid: 4711,
        gid: Some(4712),
        groups: vec![4713],
        ..User::default()
    });
    let ended = host.run(start);
    // An agent that is not root runs everything as its own user.
    if nix::unistd::geteuid().is_root() {
        assert_eq!(ended.stdout, b"4711\n4712\n4712 4713\n4711\n");
    }
    assert_eq!(ended.code, 0);
    let mut start = command(2, &["true"]);
    start.user = Some(User {
        name: "no-such-user".to_owned(),
        ..User::default()
    });
    host.send(start);
    assert_eq!(host.refused().reason(), Reason::NoUser);
    host.disconnect();
}

#[test]
fn requests_are_answered_beside_sessions() {
    let mut host = Host::connect();
    host.send(command(1, &["sleep", "600"]));
    host.started();
    let action = Some(Action::ReportFacts(ReportFacts {}));
    host.send(Request { number: 2, action });
    let Kind::Answer(answer) = host.next() else {
        panic!("something else");
    };
    assert_eq!((answer.number, answer.error.as_str()), (2, ""));
    let facts = answer.facts.expect("facts");
    assert!(facts.memory > 0 && !facts.kernel.is_empty(), "{facts:?}");
    // Of a later version.
    host.send(Request {
        number: 3,
        action: None,
    });
    let Kind::Answer(answer) = host.next() else {
        panic!("something else");
    };
    assert!(answer.error.contains("does not know"), "{}", answer.error);
    host.send(Close { session: 1 });
    assert_eq!(host.end(1).code, 128 + 9);
    host.disconnect();
}

#[test]
fn input_reaches_the_command_and_its_end_too() {
    let mut host = Host::connect();
    host.send(with_input(command(1, &["cat"])));
    host.started();
    host.input(1, b"first ", false);
    host.await_output(1, "first ");
    host.input(1, b"second", true);
    assert_eq!(host.end(1).stdout, b"second");
    // A command that does not read its input ends all the same, and the input is lost.
    host.send(with_input(shell(2, "exec <&-; echo closed; sleep 0.1")));
    host.started();
    host.await_output(2, "closed");
    host.input(2, &[0; 1000], true);
    assert_eq!(host.end(2).code, 0);
    host.disconnect();
}

#[test]
fn megabytes_pass_both_ways_within_the_windows() {
    let mut host = Host::connect();
    host.send(with_input(command(1, &["cat"])));
    host.started();
    let sent: Vec<u8> = (0..3_000_000_u32)
        .map(|n| n.to_le_bytes()[n as usize % 3])
        .collect();
    let mut room = WINDOW;
    let mut at = 0;
    let mut back = Vec::new();
    let mut ended = false;
    while !ended {
        let length = room.min(guestapi::CHUNK).min(sent.len() - at);
        if length > 0 {
            host.input(1, &sent[at..at + length], at + length == sent.len());
            (at, room) = (at + length, room - length);
            continue;
        }
        match host.next() {
            Kind::Credit(credit) => {
                assert_eq!(credit.stream(), Stream::Stdin);
                room += credit.bytes as usize;
                assert!(room <= WINDOW);
            }
            Kind::Data(data) => {
                host.acknowledge(&data);
                back.extend_from_slice(&data.data);
            }
            Kind::Exited(exited) => {
                assert_eq!(exited.code, 0);
                ended = true;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(back == sent);
    host.disconnect();
}

#[test]
fn a_session_whose_output_is_not_read_stops_and_delays_no_other_one() {
    let mut host = Host::connect();
    host.send(command(1, &["cat", "/dev/zero"]));
    host.started();
    let mut unread = 0;
    while unread < WINDOW {
        let Kind::Data(data) = host.next() else {
            panic!("something else");
        };
        unread += data.data.len();
    }
    assert_eq!(unread, WINDOW);
    assert_eq!(host.run(command(2, &["echo", "other"])).stdout, b"other\n");
    host.send(Close { session: 1 });
    assert_eq!(host.end(1).stdout, b"", "nothing more came");
    host.disconnect();
}

#[test]
#[allow(unsafe_code, reason = "the disposition of a signal has no safe form")]
fn a_command_ignores_no_signal_that_the_agent_ignores() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // As a shell starts programs in the background. No other test needs another disposition here.
    // SAFETY: no handler is replaced.
    unsafe { signal(Signal::SIGINT, SigHandler::SigIgn) }.unwrap();
    let mut host = Host::connect();
    let ended = host.run(command(
        1,
        &["sed", "-n", "s/SigIgn:\\s*//p", "/proc/self/status"],
    ));
    let text = String::from_utf8(ended.stdout).unwrap();
    // Bit 0 is signal 1. Those from 32 on belong to the C library.
    let ignored = u64::from_str_radix(text.trim(), 16).unwrap();
    assert_eq!(ignored & 0x7fff_ffff, 0, "{text}");
    host.disconnect();
}

#[test]
fn a_terminal_has_a_size_and_sends_signals() {
    let mut host = Host::connect();
    let script = "trap 'stty size' WINCH; stty size; test -t 2 && echo tty $TERM; \
        while :; do sleep 0.05; done";
    host.send(in_terminal(shell(1, script), 30, 100));
    host.started();
    host.await_output(1, "30 100\r\ntty xterm\r\n");
    let terminal = Some(Terminal {
        rows: 40,
        columns: 120,
    });
    host.send(Resize {
        session: 1,
        terminal,
    });
    host.await_output(1, "40 120");
    // Ctrl-C
    host.input(1, b"\x03", false);
    assert_eq!(host.end(1).code, 128 + 2);

    host.send(in_terminal(command(2, &["cat"]), 1, 1));
    host.started();
    host.input(2, b"line\n", true);
    let ended = host.end(2);
    assert_eq!(
        (ended.stdout, ended.code),
        (b"line\r\nline\r\n".to_vec(), 0)
    );
    host.disconnect();
}

#[test]
fn a_signal_reaches_the_group_of_the_command() {
    let mut host = Host::connect();
    host.send(shell(
        1,
        "trap 'echo got; exit 3' TERM; echo up; while :; do sleep 0.05; done",
    ));
    host.started();
    host.await_output(1, "up");
    host.send(Signal {
        session: 1,
        number: 15,
    });
    assert_eq!(host.end(1).code, 3);
    host.disconnect();
}

#[test]
fn the_end_of_a_session_or_connection_kills_all_that_was_started() {
    let mut host = Host::connect();
    // In groups of their own, as an interactive shell starts them.
    let script = "set -m; sleep 1000 & echo pid $! end; sleep 1000";
    let sleeper = |host: &mut Host, session| {
        host.send(in_terminal(shell(session, script), 24, 80));
        host.started();
        let mut seen = String::new();
        while !seen.contains("end") {
            if let Kind::Data(data) = host.next() {
                host.acknowledge(&data);
                seen.push_str(&String::from_utf8_lossy(&data.data));
            }
        }
        let pid = seen.split(' ').nth(1).unwrap().to_owned();
        assert!(is_alive(&pid));
        pid
    };
    let closed = sleeper(&mut host, 1);
    host.send(Close { session: 1 });
    host.end(1);
    assert!(has_ended(&closed), "by the end of the session");
    let replaced = sleeper(&mut host, 2);
    // What the predecessor did not finish is in the way.
    host.write(b"half a frame");
    host.reconnect(8);
    assert!(has_ended(&replaced), "by a new connection");
    let left = sleeper(&mut host, 3);
    host.disconnect();
    assert!(has_ended(&left), "by the end of the connection");
}

#[test]
fn what_runs_on_in_the_background_does_not_keep_a_session() {
    let mut host = Host::connect();
    let ended = host.run(shell(1, "sleep 1000 & echo $!"));
    let pid = String::from_utf8(ended.stdout).unwrap();
    assert!(is_alive(pid.trim()), "as after a shell's end");
    assert_eq!(ended.code, 0);
    assert_eq!(host.run(command(2, &["kill", pid.trim()])).code, 0);
    host.disconnect();
}

#[test]
fn the_working_directory_of_a_container_is_made() {
    let place = tempfile::tempdir().unwrap();
    let mut host = Host::connect();
    let missing = place.path().join("srv/not/there");
    let mut start = kept(shell(1, "pwd; stat -c %a ."), "container");
    start.directory = missing.to_str().unwrap().to_owned();
    let ended = host.run(start.clone());
    let output = String::from_utf8(ended.stdout).unwrap();
    assert_eq!(output, format!("{}\n755\n", missing.display()));
    std::fs::write(place.path().join("file"), "").unwrap();
    start.directory = place.path().join("file/x").to_str().unwrap().to_owned();
    start.session = 2;
    start.keep = "other".to_owned();
    host.send(start);
    let refused = host.refused();
    assert_eq!(refused.reason(), Reason::NoDirectory);
    let message = refused.message;
    assert!(
        message.contains("failed to make the working directory"),
        "{message}"
    );
    host.disconnect();
}

#[test]
fn what_cannot_start_is_refused_in_words() {
    let mut host = Host::connect();
    host.send(command(1, &["no-such-command"]));
    let refused = host.refused();
    assert_eq!(refused.reason(), Reason::NoCommand);
    assert_eq!(
        refused.message,
        "the guest has no command \"no-such-command\""
    );
    let mut start = command(2, &["true"]);
    start.directory = "/no/such".to_owned();
    host.send(start);
    assert_eq!(host.refused().reason(), Reason::NoDirectory);
    host.send(command(3, &["/etc"]));
    assert_eq!(host.refused().reason(), Reason::NoCommand, "a folder");
    host.send(command(4, &[]));
    assert_eq!(host.refused().message, "the request has no command");
    host.send(in_terminal(command(5, &["no-such-command"]), 1, 1));
    assert_eq!(host.refused().reason(), Reason::NoCommand);

    let most = SESSIONS as u64;
    for session in 10..10 + most {
        host.send(with_input(command(session, &["cat"])));
        host.started();
    }
    host.send(command(1000, &["true"]));
    assert_eq!(host.refused().reason(), Reason::TooMany);
    host.send(Close { session: 10 });
    host.end(10);
    assert_eq!(host.run(command(1001, &["true"])).code, 0);
    host.disconnect();
}

#[test]
fn a_host_of_another_version_gets_version_0() {
    let mut host = Host::connect();
    host.greet(9, VERSION + 1);
    let hello = host.hello();
    assert_eq!((hello.version, hello.connection), (0, 9));
    host.greet(10, 1);
    assert_eq!(host.hello().version, 1, "a host that keeps no sessions");
    host.disconnect();
}
