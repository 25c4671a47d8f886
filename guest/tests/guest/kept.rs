//! Sessions that outlive their connection.
//!
//! Invariant: what a command writes reaches the hosts once, whenever a connection ends.
//! Failure: as in the other tests.

use std::fs;
use std::path::PathBuf;

use guestapi::from_guest::Kind;
use guestapi::request::Action;
use guestapi::{
    CHUNK, Close, Credit, LONGEST_NAME, Reason, ReportUsage, Request, Resize, SESSIONS, Stream,
    Terminal, Usage, WINDOW,
};
use nix::sys::stat::Mode;

use crate::host::{Ended, Host, command, in_terminal, kept, shell, with_input};
use crate::{has_ended, is_alive};

/// Named pipes, by which a command and a test await each other.
struct Pipes(tempfile::TempDir);

impl Pipes {
    fn new() -> Self {
        let pipes = Self(tempfile::tempdir().unwrap());
        for name in ["go", "done"] {
            nix::unistd::mkfifo(&pipes.path(name), Mode::S_IRWXU).unwrap();
        }
        pipes
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A command that runs in their folder.
    fn shell(&self, session: u64, script: &str) -> guestapi::Start {
        let mut start = shell(session, script);
        start.directory = self.0.path().to_str().unwrap().to_owned();
        start
    }

    /// Lets the command go on, and waits until it closes its end.
    fn pass(&self) {
        fs::write(self.path("go"), "\n").unwrap();
        fs::read(self.path("done")).unwrap();
    }
}

/// The next data of a session; what came under former numbers is passed over.
fn read_data(host: &mut Host, session: u64) -> guestapi::Data {
    loop {
        match host.next() {
            Kind::Data(data) if data.session == session => return data,
            Kind::Data(_) | Kind::Credit(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn output_before_between_and_after_connections_comes_once() {
    let mut host = Host::connect();
    let pipes = Pipes::new();
    let script = "echo before; read x < go; echo between; echo error >&2; echo > done; \
        read y; echo after $y; exit 5";
    let start = with_input(pipes.shell(1, script));
    host.send(kept(start, "a"));
    let pid = host.started();
    let data = read_data(&mut host, 1);
    assert_eq!(&data.data[..], b"before\n");
    // Not all that was received.
    host.send(Credit {
        session: 1,
        stream: Stream::Stdout.into(),
        bytes: 3,
    });
    host.reconnect(8);
    pipes.pass();
    assert_eq!(host.adopt(2, "a", 5, 0), pid);
    host.await_output(2, "e\nbetween\n");
    host.input(2, b"all\n", false);
    let ended = host.end(2);
    assert_eq!((ended.stdout, ended.code), (b"after all\n".to_vec(), 5));
    // What was acknowledged is gone, and the rest is there.
    host.send_adopt(3, "a", 4, 0);
    let refused = host.refused();
    assert_eq!(refused.reason(), Reason::NoSession);
    assert_eq!(
        refused.message,
        "the guest has standard output of the session from byte 25 to byte 25, not from byte 4"
    );
    host.send_adopt(3, "a", 25, 7);
    assert!(host.refused().message.contains("standard error"));
    host.disconnect();
}

#[test]
fn a_stream_that_is_cut_anywhere_is_whole() {
    let mut host = Host::connect();
    host.send(kept(command(1, &["seq", "1", "200000"]), "a"));
    host.started();
    let mut received = Vec::new();
    let mut number = 1;
    let mut messages = 0;
    let code = loop {
        match host.next() {
            // Of a former connection.
            Kind::Data(data) if data.session != number => {}
            Kind::Data(data) => {
                messages += 1;
                received.extend_from_slice(&data.data);
                if messages % 3 > 0 {
                    host.acknowledge(&data);
                }
                if messages % 5 == 0 {
                    number += 1;
                    host.reconnect(number);
                    host.adopt(number, "a", received.len(), 0);
                }
            }
            Kind::Exited(exited) => break exited.code,
            other => panic!("{other:?}"),
        }
    };
    let expected: String = (1..=200_000).map(|n| format!("{n}\n")).collect();
    assert!(received == expected.as_bytes());
    assert!(number > 10, "connections: {number}");
    assert_eq!(code, 0);
    host.disconnect();
}

#[test]
fn a_command_waits_while_no_host_takes_its_output() {
    let mut host = Host::connect();
    let most = 1_000_000;
    let size = most.to_string();
    host.send(kept(command(1, &["head", "-c", &size, "/dev/zero"]), "a"));
    let pid = host.started().to_string();
    host.reconnect(8);
    // Twice the same bytes, which it does not acknowledge.
    for session in [2, 3] {
        host.adopt(session, "a", 0, 0);
        let mut unread = 0;
        while unread < WINDOW {
            let data = read_data(&mut host, session);
            assert!(data.data.len() <= CHUNK);
            unread += data.data.len();
        }
        assert_eq!(unread, WINDOW);
        assert_eq!(host.run(command(9, &["echo", "x"])).stdout, b"x\n");
        assert!(is_alive(&pid), "it waits");
    }
    host.adopt(4, "a", WINDOW, 0);
    let ended = host.end(4);
    assert_eq!((ended.stdout.len(), ended.code), (most - WINDOW, 0));
    host.disconnect();
}

#[test]
fn the_end_of_a_command_is_kept_until_the_session_is_closed() {
    let mut host = Host::connect();
    let pipes = Pipes::new();
    let script = "exec 3> done; read x < go; echo out; exit 9";
    host.send(kept(pipes.shell(1, script), "a"));
    host.started();
    host.reconnect(8);
    // The opening end waits for the command.
    let done = fs::File::open(pipes.path("done")).unwrap();
    fs::write(pipes.path("go"), "\n").unwrap();
    std::io::read_to_string(done).unwrap();
    let expected = Ended {
        stdout: b"out\n".to_vec(),
        stderr: Vec::new(),
        code: 9,
    };
    host.adopt(2, "a", 0, 0);
    assert_eq!(host.end(2), expected);
    host.adopt(3, "a", 4, 0);
    assert_eq!((host.end(3).code, host.reconnect(9)), (9, ()));

    host.send(kept(command(4, &["true"]), "a"));
    let refused = host.refused();
    assert_eq!(refused.reason(), Reason::NoSession);
    assert_eq!(refused.message, "the guest keeps a session \"a\" already");
    host.adopt(5, "a", 4, 0);
    host.end(5);
    host.send(Close { session: 5 });
    host.send_adopt(6, "a", 4, 0);
    let refused = host.refused();
    assert_eq!(refused.reason(), Reason::NoSession);
    assert_eq!(refused.message, "the guest keeps no session \"a\"");
    host.send(kept(command(7, &["cat", "/dev/zero"]), "a"));
    host.started();
    host.send(Close { session: 7 });
    assert_eq!(host.end(7).code, 128 + 9);
    assert_eq!(host.run(kept(command(8, &["true"]), "a")).code, 0);
    host.disconnect();
}

#[test]
fn a_session_that_a_host_has_can_be_adopted_again() {
    let mut host = Host::connect();
    host.send(kept(with_input(command(1, &["cat"])), "a"));
    let pid = host.started();
    host.input(1, b"one", false);
    host.await_output(1, "one");
    host.send_adopt(1, "a", 3, 0);
    assert_eq!(host.refused().message, "the guest has a session 1 already");
    assert_eq!(host.adopt(2, "a", 3, 0), pid);
    // The former number means nothing now.
    host.input(1, b"lost", false);
    host.send(Close { session: 1 });
    host.input(2, b"two", true);
    let ended = host.end(2);
    assert_eq!((ended.stdout, ended.code), (b"two".to_vec(), 0));
    host.disconnect();
}

#[test]
fn input_stays_open_across_connections() {
    let mut host = Host::connect();
    host.send(kept(with_input(command(1, &["cat"])), "a"));
    host.started();
    host.input(1, b"first ", false);
    host.await_output(1, "first ");
    host.reconnect(8);
    host.adopt(2, "a", 6, 0);
    host.input(2, b"second", false);
    let mut credit = 0;
    let mut output = Vec::new();
    while credit < 6 || output.len() < 6 {
        match host.next() {
            // Of the former connection: its command read the input a moment ago.
            Kind::Credit(given) if given.session == 1 => {}
            Kind::Credit(given) => {
                assert_eq!((given.session, given.stream()), (2, Stream::Stdin));
                credit += given.bytes;
            }
            Kind::Data(data) => output.extend_from_slice(&data.data),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((credit, &output[..]), (6, &b"second"[..]));
    host.reconnect(9);
    host.adopt(3, "a", 12, 0);
    host.input(3, b"", true);
    assert_eq!(host.end(3).code, 0);
    host.disconnect();
}

#[test]
fn a_terminal_is_kept_with_its_size() {
    let mut host = Host::connect();
    let start = in_terminal(shell(1, "stty size; read x; stty size; read x"), 30, 100);
    host.send(kept(start, "a"));
    host.started();
    host.await_output(1, "30 100\r\n");
    host.reconnect(8);
    host.send_adopt(2, "a", 8, 1);
    assert!(host.refused().message.contains("standard error"));
    host.adopt(3, "a", 8, 0);
    let terminal = Some(Terminal {
        rows: 40,
        columns: 120,
    });
    host.send(Resize {
        session: 3,
        terminal,
    });
    host.input(3, b"\n", false);
    host.await_output(3, "40 120\r\n");
    // Ctrl-C
    host.input(3, b"\x03", false);
    assert_eq!(host.end(3).code, 128 + 2);
    host.disconnect();
}

#[test]
fn what_a_kept_command_leaves_behind_is_killed_with_it() {
    let mut host = Host::connect();
    // In groups of their own; one holds the output open, and ignores signals that it can ignore.
    let script = "set -m; (trap '' HUP TERM; exec sleep 1000) & a=$!; \
        sleep 1000 > /dev/null 2>&1 & echo $a $!";
    let ended = host.run(kept(shell(1, script), "a"));
    let pids = String::from_utf8(ended.stdout).unwrap();
    assert_eq!((pids.split_whitespace().count(), ended.code), (2, 0));
    for pid in pids.split_whitespace() {
        assert!(has_ended(pid), "{pid}");
    }
    // The end of the agent is the end of all that it keeps.
    host.send(kept(command(2, &["sleep", "1000"]), "b"));
    let pid = host.started().to_string();
    host.reconnect(8);
    assert!(is_alive(&pid));
    host.disconnect();
    assert!(has_ended(&pid));
}

#[test]
fn a_guest_keeps_so_many_sessions_beside_others() {
    let mut host = Host::connect();
    let name = "n".repeat(LONGEST_NAME);
    host.send(kept(command(1, &["true"]), &format!("{name}n")));
    assert_eq!(
        host.refused().message,
        "the name of a session has at most 64 bytes"
    );
    // Ended ones count.
    assert_eq!(host.run(kept(command(1, &["true"]), &name)).code, 0);
    for session in 2..=SESSIONS as u64 {
        let start = with_input(command(session, &["cat"]));
        host.send(kept(start, &session.to_string()));
        host.started();
    }
    host.send(kept(command(1000, &["true"]), "more"));
    let refused = host.refused();
    assert_eq!(refused.reason(), Reason::TooMany);
    assert_eq!(refused.message, "the guest has 64 kept sessions already");
    assert_eq!(host.run(command(1001, &["true"])).code, 0);
    host.send(Close { session: 1 });
    assert_eq!(host.run(kept(command(1002, &["true"]), "more")).code, 0);
    host.disconnect();
}

fn usage(host: &mut Host, names: &[&str]) -> Vec<Usage> {
    let keep = names.iter().map(|name| (*name).to_owned()).collect();
    host.send(Request {
        number: 100,
        action: Some(Action::ReportUsage(ReportUsage { keep })),
    });
    match host.next() {
        Kind::Answer(answer) => {
            assert_eq!((answer.number, answer.error.as_str()), (100, ""));
            answer.usage
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_use_of_sessions_that_run_is_reported() {
    let mut host = Host::connect();
    host.run(kept(command(1, &["true"]), "ended"));
    host.send(command(2, &["sleep", "1000"]));
    host.started();
    // Two processes, one of them in a session of its own.
    let script = "setsid sh -c 'echo up; while :; do :; done' & wait";
    host.send(kept(shell(3, script), "busy"));
    host.started();
    host.await_output(3, "up\n");
    host.send(kept(command(4, &["sleep", "1000"]), "idle"));
    host.started();
    let mut all = usage(&mut host, &[]);
    all.sort_by(|a, b| a.keep.cmp(&b.keep));
    let [busy, idle] = &all[..] else {
        panic!("{all:?}");
    };
    assert_eq!((busy.keep.as_str(), busy.processes), ("busy", 2));
    assert_eq!((idle.keep.as_str(), idle.processes), ("idle", 1));
    let before = busy.cpu;
    // The host asks until the clock has ticked, and the kernel has counted the pages.
    let mut busy = all[0].clone();
    while busy.cpu <= before || busy.memory == 0 {
        busy = usage(&mut host, &["busy", "no such"]).remove(0);
    }
    let idle = usage(&mut host, &["idle"]);
    assert!(idle.len() == 1 && idle[0].cpu < 1_000_000_000, "{idle:?}");
    host.disconnect();
}
