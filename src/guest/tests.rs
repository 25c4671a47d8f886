//! Commands through the real agent, and what a hostile guest can do.
//!
//! Invariant: a socket is in the place of the virtio-serial port; no test needs root.
//! Failure: the assertion shows what came.

use bytes::Bytes;
use guestapi::to_guest::Kind;
use guestapi::{
    Answer, Data, Decoder, Exited, FromGuest, GuestHello, MAX_FRAME, Started, Stream, Terminal,
    ToGuest, VERSION, WINDOW, encode,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::*;

mod facts;
mod freezes;
mod greetings;
mod kept;

const SOON: Duration = Duration::from_secs(60);

/// A machine's port.
struct Port {
    listener: UnixListener,
    socket: MachineSocket,
    guests: Guests,
    id: ContainerId,
    _scratch: TempDir,
}

impl Port {
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("guest");
        Self {
            listener: UnixListener::bind(&path).unwrap(),
            socket: MachineSocket {
                path,
                user: nix::unistd::geteuid().as_raw(),
            },
            guests: Guests::default(),
            id: ContainerId::generate(),
            _scratch: scratch,
        }
    }

    async fn accept(&self) -> UnixStream {
        self.listener.accept().await.unwrap().0
    }

    /// With the real agent in the guest.
    async fn agent(&self) -> Agent {
        let serve = async {
            let socket = self.accept().await.into_std().unwrap();
            let port = ::guest::Port::of_socket(socket).unwrap();
            std::thread::spawn(move || ::guest::serve(&port, &crate::testkit::no_places()));
        };
        let agent = self.guests.agent(&self.id, &self.socket, SOON);
        tokio::join!(serve, agent).1.expect("an answer")
    }

    /// With a guest that the test plays.
    async fn hostile(&self) -> (Agent, Guest) {
        self.of_version(VERSION).await
    }

    /// As [`Self::hostile`], with this version of the protocol.
    async fn of_version(&self, version: u32) -> (Agent, Guest) {
        let greet = async {
            let mut guest = Guest {
                socket: self.accept().await,
                decoder: Decoder::new(MAX_FRAME),
                received: Vec::new(),
            };
            let Kind::HostHello(hello) = guest.next().await else {
                panic!("no greeting");
            };
            guest
                .send(GuestHello {
                    version,
                    connection: hello.connection,
                    program: "1\n\u{1b}[2J".to_owned(),
                    watches_freezes: true,
                })
                .await;
            guest
        };
        let agent = self.guests.agent(&self.id, &self.socket, SOON);
        let (guest, agent) = tokio::join!(greet, agent);
        (agent.expect("an answer"), guest)
    }
}

struct Guest {
    socket: UnixStream,
    decoder: Decoder,
    received: Vec<ToGuest>,
}

impl Guest {
    async fn next(&mut self) -> Kind {
        loop {
            if !self.received.is_empty() {
                return self.received.remove(0).kind.expect("a kind");
            }
            let mut buffer = [0; 4096];
            let read = tokio::time::timeout(SOON, self.socket.read(&mut buffer));
            let length = read.await.expect("a message").unwrap();
            assert_ne!(length, 0, "the host disconnected");
            self.received.extend(self.decoder.feed(&buffer[..length]));
        }
    }

    async fn send(&mut self, message: impl Into<FromGuest>) {
        self.socket
            .write_all(&encode(&message.into()))
            .await
            .unwrap();
    }

    /// Takes a request to start, and starts nothing.
    async fn start(&mut self) -> u64 {
        let Kind::Start(start) = self.next().await else {
            panic!("something else");
        };
        let session = start.session;
        self.send(Started { session, pid: 1 }).await;
        session
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

async fn all(output: &mut Output) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buffer = [0; 5000];
    loop {
        match output.read(&mut buffer).await.unwrap() {
            0 => return all,
            length => all.extend_from_slice(&buffer[..length]),
        }
    }
}

#[tokio::test]
async fn a_command_runs_with_input_output_and_exit_code() {
    let port = Port::new();
    let agent = port.agent().await;
    assert_eq!(agent.version, env!("CARGO_PKG_VERSION"));
    let script = words(&["sh", "-c", "cat; echo err >&2; exit 5"]);
    let mut command = agent.start(script, true, None).await.unwrap();
    let sent: Vec<u8> = (0..1_000_000_u32).flat_map(|n| n.to_le_bytes()).collect();
    let send = async {
        assert!(command.input.write(&sent).await);
        command.input.end().await;
    };
    let ((), out, err) = tokio::join!(send, all(&mut command.stdout), all(&mut command.stderr));
    assert!(out == sent, "{} bytes of {}", out.len(), sent.len());
    assert_eq!(err, b"err\n");
    assert_eq!(command.ended.wait().await.map(|end| end.code), Ok(5));
    assert!(!command.input.write(&[0; WINDOW]).await, "it has ended");

    let missing = agent.start(words(&["no-such"]), false, None).await;
    assert_eq!(missing.unwrap_err(), Error::NoCommand("no-such".to_owned()));
    let again = port.guests.agent(&port.id, &port.socket, SOON).await;
    assert!(
        Arc::ptr_eq(&again.unwrap().link, &agent.link),
        "one connection"
    );
}

#[tokio::test]
async fn a_terminal_is_resized_and_a_dropped_command_is_killed() {
    let port = Port::new();
    let agent = port.agent().await;
    let size = |rows, columns| Terminal { rows, columns };
    let script = "trap 'stty size' WINCH; echo $$ up; while :; do sleep 0.05; done";
    let shell = agent.start(words(&["sh", "-c", script]), true, Some(size(24, 80)));
    let mut command = shell.await.unwrap();
    let mut seen = String::new();
    let mut buffer = [0; 100];
    for (text, next) in [(" up", Some(size(50, 132))), ("50 132", None)] {
        while !seen.contains(text) {
            let read = tokio::time::timeout(SOON, command.stdout.read(&mut buffer));
            let length = read.await.expect("output").unwrap();
            assert_ne!(length, 0, "{seen}");
            seen.push_str(&String::from_utf8_lossy(&buffer[..length]));
        }
        if let Some(size) = next {
            command.control.resize(size).await;
        }
    }
    let pid = seen.split(' ').next().unwrap().to_owned();
    let process = std::path::PathBuf::from("/proc").join(&pid);
    assert!(process.exists());
    let mut stdout = command.stdout;
    let ended = command.ended;
    drop(ended);
    // Its output ends at once; the guest kills it soon.
    assert_eq!(stdout.read(&mut buffer).await.unwrap(), 0);
    let gone = async {
        while process.exists() {
            let mut other = agent.start(words(&["true"]), false, None).await.unwrap();
            assert_eq!(other.ended.wait().await.map(|end| end.code), Ok(0));
        }
    };
    tokio::time::timeout(SOON, gone)
        .await
        .expect("it is killed");
}

#[tokio::test]
async fn a_client_that_does_not_read_delays_no_other_one() {
    let port = Port::new();
    let agent = port.agent().await;
    let flood = agent.start(words(&["cat", "/dev/zero"]), false, None).await;
    let mut flood = flood.unwrap();
    for _ in 0..20 {
        let mut other = agent
            .start(words(&["echo", "x"]), false, None)
            .await
            .unwrap();
        assert_eq!(all(&mut other.stdout).await, b"x\n");
    }
    let mut buffer = vec![0; 4 * WINDOW];
    let length = flood.stdout.read(&mut buffer).await.unwrap();
    assert!(length <= WINDOW);
}

#[tokio::test]
async fn a_guest_that_sends_more_than_it_may_loses_the_session() {
    let port = Port::new();
    let (agent, mut guest) = port.hostile().await;
    assert_eq!(agent.version, "1  [2J", "no control characters");
    let play = async {
        let session = guest.start().await;
        let piece = Data {
            session,
            stream: Stream::Stdout.into(),
            data: Bytes::from_static(&[7; 16 << 10]),
            end: false,
        };
        for _ in 0..5 {
            guest.send(piece.clone()).await;
        }
        // The session is no more, and more of it is dropped.
        guest.send(piece).await;
        let Kind::Close(close) = guest.next().await else {
            panic!("something else");
        };
        assert_eq!(close.session, session);
    };
    let run = async {
        let mut command = agent.start(words(&["x"]), false, None).await.unwrap();
        let ended = command.ended.wait().await.map(|end| end.code);
        (all(&mut command.stdout).await.len(), ended)
    };
    let ((), (length, ended)) = tokio::join!(play, run);
    assert_eq!((length, ended), (WINDOW, Err(Error::Protocol)));
}

#[tokio::test]
async fn a_guest_that_floods_and_does_not_read_loses_the_connection() {
    let port = Port::new();
    let (agent, mut guest) = port.hostile().await;
    let hello = encode(&FromGuest::from(GuestHello::default())).repeat(1000);
    // Each asks for an answer, and none is read. The burst is enough to fill the queue.
    while guest.socket.write_all(&hello).await.is_ok() {}
    while agent.link.is_alive() {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        agent.start(words(&["x"]), false, None).await.unwrap_err(),
        Error::Lost
    );
    // The next request connects again.
    port.agent().await;
}

#[tokio::test]
async fn a_command_whose_client_left_before_its_start_was_sent_does_not_start() {
    let port = Port::new();
    let (agent, mut guest) = port.hostile().await;
    // More than the connection holds.
    let long = vec!["x".repeat(200_000)];
    let starts = (0..20).map(|_| agent.start(long.clone(), false, None));
    let mut starts: Vec<_> = starts.map(Box::pin).collect();
    for start in &mut starts {
        assert!(futures_util::poll!(start).is_pending());
    }
    // The writer has filled the connection when nothing else is left to do.
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    drop(starts);
    let mut running = std::collections::HashSet::new();
    let play = async {
        loop {
            match guest.next().await {
                Kind::Start(start) if start.command == ["last"] => return start.session,
                Kind::Start(start) => assert!(running.insert(start.session)),
                Kind::Close(close) => drop(running.remove(&close.session)),
                other => panic!("{other:?}"),
            }
        }
    };
    let last = agent.start(words(&["last"]), false, None);
    tokio::select! {
        _ = play => {}
        ended = last => panic!("{ended:?}"),
    }
    assert!(running.is_empty(), "{} commands run on", running.len());
}

#[tokio::test]
async fn output_in_many_small_pieces_is_within_the_window() {
    let port = Port::new();
    let (agent, mut guest) = port.hostile().await;
    let play = async {
        let session = guest.start().await;
        let piece = |data: &'static [u8], end| {
            encode(&FromGuest::from(Data {
                session,
                stream: Stream::Stdout.into(),
                data: Bytes::from_static(data),
                end,
            }))
        };
        // All of it arrives at once.
        let bytes = [piece(b"x", false).repeat(500), piece(b"", true).to_vec()].concat();
        guest.socket.write_all(&bytes).await.unwrap();
        guest
            .send(Exited {
                session,
                code: 0,
                ..Exited::default()
            })
            .await;
    };
    let run = async {
        let mut command = agent.start(words(&["x"]), false, None).await.unwrap();
        let output = all(&mut command.stdout).await;
        (output.len(), command.ended.wait().await.map(|end| end.code))
    };
    let ((), ended) = tokio::join!(play, run);
    assert_eq!(ended, (500, Ok(0)));
}

#[tokio::test]
async fn an_exit_code_that_no_process_has_is_refused() {
    for (code, expected) in [
        (i32::MIN, Err(Error::Protocol)),
        (-1, Err(Error::Protocol)),
        (0, Ok(0)),
        (192, Ok(192)),
        (255, Ok(255)),
        (256, Err(Error::Protocol)),
        (i32::MAX, Err(Error::Protocol)),
    ] {
        let port = Port::new();
        let (agent, mut guest) = port.hostile().await;
        let play = async {
            let session = guest.start().await;
            let exited = Exited {
                session,
                code,
                ..Exited::default()
            };
            guest.send(exited).await;
        };
        let (command, ()) = tokio::join!(agent.start(words(&["x"]), false, None), play);
        let ended = command.unwrap().ended.wait().await;
        assert_eq!(ended.map(|end| end.code), expected);
    }
}
