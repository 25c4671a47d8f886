//! The host's side of a connection, one message at a time.
//!
//! Invariant: real processes; the agent runs in a thread behind a socket.
//! Failure: a message that does not come in time fails the test.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use guest::{Places, Port};
use guestapi::from_guest::Kind;
use guestapi::{
    Adopt, Credit, Data, Decoder, Exited, FromGuest, GuestHello, HostHello, MAX_FRAME_OF_GUEST,
    Refused, Start, Stream, Terminal, ToGuest, VERSION, encode,
};
use nix::unistd::geteuid;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Host {
    socket: UnixStream,
    decoder: Decoder,
    received: std::collections::VecDeque<FromGuest>,
    agent: Option<JoinHandle<std::io::Result<()>>>,
}

/// What came of a session.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) code: i32,
}

/// A command without terminal and input.
pub(crate) fn command(session: u64, words: &[&str]) -> Start {
    // An agent of another user can enter no home of root, where commands begin.
    let directory = if geteuid().is_root() { "" } else { "/" };
    Start {
        session,
        command: words.iter().map(|word| (*word).to_owned()).collect(),
        directory: directory.to_owned(),
        ..Start::default()
    }
}

pub(crate) fn shell(session: u64, script: &str) -> Start {
    command(session, &["sh", "-c", script])
}

pub(crate) fn with_input(start: Start) -> Start {
    Start {
        input: true,
        ..start
    }
}

pub(crate) fn kept(start: Start, name: &str) -> Start {
    Start {
        keep: name.to_owned(),
        ..start
    }
}

pub(crate) fn in_terminal(start: Start, rows: u32, columns: u32) -> Start {
    Start {
        input: true,
        terminal: Some(Terminal { rows, columns }),
        ..start
    }
}

impl Host {
    /// Connected, the agent's announcement read.
    pub(crate) fn connect() -> Self {
        let files = Path::new("/nonexistent");
        Self::connect_to(Places::below(files, None).unwrap())
    }

    /// Connected to an agent whose sessions have these places.
    pub(crate) fn connect_to(places: Places) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(PATIENCE)).unwrap();
        let port = Port::of_socket(theirs).unwrap();
        let mut host = Self {
            socket: ours,
            decoder: Decoder::new(MAX_FRAME_OF_GUEST),
            received: Default::default(),
            agent: Some(std::thread::spawn(move || guest::serve(&port, &places))),
        };
        assert_eq!(host.hello().connection, 0, "the announcement");
        host.greet(7, VERSION);
        assert_eq!(host.hello().version, VERSION);
        host
    }

    pub(crate) fn greet(&mut self, connection: u64, version: u32) {
        self.send(HostHello {
            oldest: version,
            newest: version,
            connection,
        });
    }

    /// Begins a new connection; what the agent still sent in the former one is passed over.
    pub(crate) fn reconnect(&mut self, connection: u64) {
        self.greet(connection, VERSION);
        loop {
            if let Kind::GuestHello(hello) = self.next() {
                assert_eq!((hello.version, hello.connection), (VERSION, connection));
                return;
            }
        }
    }

    /// Adopts a session, of which the host has so many bytes; its process.
    pub(crate) fn adopt(&mut self, session: u64, name: &str, stdout: usize, stderr: usize) -> i32 {
        self.send_adopt(session, name, stdout, stderr);
        self.started()
    }

    pub(crate) fn send_adopt(&mut self, session: u64, name: &str, stdout: usize, stderr: usize) {
        self.send(Adopt {
            session,
            keep: name.to_owned(),
            stdout: stdout as u64,
            stderr: stderr as u64,
        });
    }

    pub(crate) fn send(&mut self, message: impl Into<ToGuest>) {
        self.write(&encode(&message.into()));
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    pub(crate) fn next(&mut self) -> Kind {
        loop {
            if let Some(message) = self.received.pop_front() {
                return message.kind.expect("a kind that we know");
            }
            let mut buffer = [0; 4096];
            let length = match self.socket.read(&mut buffer) {
                // The process was stopped for a while.
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read.expect("a message in time"),
            };
            assert_ne!(length, 0, "the agent ended");
            self.received.extend(self.decoder.feed(&buffer[..length]));
        }
    }

    pub(crate) fn hello(&mut self) -> GuestHello {
        match self.next() {
            Kind::GuestHello(hello) => hello,
            other => panic!("{other:?}"),
        }
    }

    /// Waits for the start of a command; what sessions of before still sent is passed over.
    pub(crate) fn started(&mut self) -> i32 {
        let mut others = BTreeSet::new();
        loop {
            others.insert(match self.next() {
                Kind::Started(started) => {
                    assert!(!others.contains(&started.session), "before its start");
                    return started.pid;
                }
                Kind::Exited(exited) => exited.session,
                Kind::Data(data) => data.session,
                Kind::Credit(credit) => credit.session,
                other => panic!("{other:?}"),
            });
        }
    }

    /// Waits for a refusal; credit for the input of other sessions is passed over.
    pub(crate) fn refused(&mut self) -> Refused {
        loop {
            match self.next() {
                Kind::Refused(refused) => return refused,
                Kind::Credit(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) fn input(&mut self, session: u64, bytes: &[u8], end: bool) {
        self.send(Data {
            session,
            stream: Stream::Stdin.into(),
            data: bytes.to_vec().into(),
            end,
        });
    }

    pub(crate) fn acknowledge(&mut self, data: &Data) {
        self.send(Credit {
            session: data.session,
            stream: data.stream,
            bytes: u32::try_from(data.data.len()).unwrap(),
        });
    }

    /// Reads these sessions to their ends, and acknowledges all output.
    pub(crate) fn ends(&mut self, sessions: &[u64]) -> BTreeMap<u64, Ended> {
        let mut open: BTreeMap<u64, Ended> = BTreeMap::new();
        let mut ended = BTreeMap::new();
        while !sessions.iter().all(|id| ended.contains_key(id)) {
            match self.next() {
                Kind::Data(data) => {
                    self.acknowledge(&data);
                    let session = open.entry(data.session).or_default();
                    match data.stream() {
                        Stream::Stderr => session.stderr.extend_from_slice(&data.data),
                        _ => session.stdout.extend_from_slice(&data.data),
                    }
                }
                Kind::Exited(Exited { session, code, .. }) => {
                    let mut end = open.remove(&session).unwrap_or_default();
                    end.code = code;
                    ended.insert(session, end);
                }
                Kind::Started(_) | Kind::Credit(_) => {}
                other => panic!("{other:?}"),
            }
        }
        ended
    }

    pub(crate) fn end(&mut self, session: u64) -> Ended {
        self.ends(&[session]).remove(&session).unwrap()
    }

    /// Waits for this text in the standard output of a session.
    pub(crate) fn await_output(&mut self, session: u64, text: &str) {
        let mut seen = String::new();
        while !seen.contains(text) {
            if let Kind::Data(data) = self.next()
                && (data.session, data.stream()) == (session, Stream::Stdout)
            {
                assert!(!data.end, "the output ended: {seen:?}");
                self.acknowledge(&data);
                seen.push_str(&String::from_utf8_lossy(&data.data));
            }
        }
    }

    pub(crate) fn run(&mut self, start: Start) -> Ended {
        let session = start.session;
        self.send(start);
        self.started();
        self.end(session)
    }

    /// Disconnects, and waits for the end of the agent with everything that it has started.
    pub(crate) fn disconnect(mut self) {
        self.socket.shutdown(std::net::Shutdown::Both).unwrap();
        self.agent.take().unwrap().join().unwrap().unwrap();
    }
}
