//! Answers the host's messages.
//!
//! Invariant: sessions belong to the connection that started them; the next one finds those that
//! are kept. The reader waits for nothing but the port, apart from writes that the host reads at any
//! time.
//! Failure: the port's error.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Scope};

use guestapi::to_guest::Kind;
use guestapi::{
    Adopt, Answer, Decoder, GuestHello, HostHello, MAX_FRAME, OLDEST, Reason, Refused, Request,
    Start, Started, ToGuest, VERSION,
};

use crate::actions::{Subjects, Work, perform};
use crate::command;
use crate::frozen::{Frozen, thaw_left};
use crate::outbox::Outbox;
use crate::places::Places;
use crate::port::Port;
use crate::session::Session;
use crate::sessions::Sessions;

/// Bytes that are read at once.
const READ: usize = 32 << 10;

/// Requests that are performed at once.
const REQUESTS: usize = 8;

/// Serves a port until it is lost. A socket is served until its end.
pub fn serve(port: &Port, places: &Places) -> io::Result<()> {
    thaw_left(&places.freezing);
    let sessions = Sessions::default();
    let outbox = Outbox::new(port);
    let frozen = Arc::<Frozen>::default();
    let requests = AtomicUsize::new(0);
    thread::scope(|scope| {
        let mut agent = Agent {
            sessions: &sessions,
            places,
            outbox,
            scope,
            frozen: Arc::clone(&frozen),
            requests: &requests,
        };
        let served = agent.serve(port);
        frozen.thaw();
        sessions.close_all();
        served
    })
}

struct Agent<'scope, 'env> {
    sessions: &'env Sessions,
    places: &'env Places,
    outbox: Arc<Outbox<'env>>,
    scope: &'scope Scope<'scope, 'env>,
    frozen: Arc<Frozen>,
    /// How many are performed.
    requests: &'env AtomicUsize,
}

impl Agent<'_, '_> {
    fn serve(&mut self, port: &Port) -> io::Result<()> {
        let mut decoder = Decoder::new(MAX_FRAME);
        let mut buffer = vec![0; READ];
        // A host that is connected learns that the agent has started.
        self.outbox.send(hello(0, 0));
        loop {
            let length = port.read(&mut buffer)?;
            for message in decoder.feed::<ToGuest>(&buffer[..length]) {
                self.handle(message);
            }
            if length == 0 {
                self.leave();
                decoder.reset();
                if port.is_socket() {
                    return Ok(());
                }
                port.await_change()?;
            }
        }
    }

    fn handle(&mut self, message: ToGuest) {
        match message.kind {
            // Of a later version: a host sends nothing else before it knows ours.
            None => {}
            Some(Kind::HostHello(host)) => {
                self.leave();
                self.outbox.send(hello(common(&host), host.connection));
            }
            Some(Kind::Start(start)) => self.start(&start),
            Some(Kind::Adopt(adopt)) => self.adopt(&adopt),
            Some(Kind::Request(request)) => self.perform(request),
            Some(Kind::Data(data)) => {
                self.with_session(data.session, |session| session.write(&data))
            }
            Some(Kind::Credit(credit)) => self.with_session(credit.session, |session| {
                session.acknowledge(credit.stream(), credit.bytes);
            }),
            Some(Kind::Resize(resize)) => self.with_session(resize.session, |session| {
                session.resize(resize.terminal.unwrap_or_default());
            }),
            Some(Kind::Signal(signal)) => {
                self.with_session(signal.session, |session| session.signal(signal.number));
            }
            Some(Kind::Close(close)) => self.sessions.close(close.session),
        }
    }

    fn start(&self, start: &Start) {
        let id = start.session;
        if let Err((reason, message)) = self.sessions.admit(start) {
            return self.refuse(id, reason, message);
        }
        if !start.keep.is_empty() {
            // It makes folders and files, for which the reader would wait until the thaw.
            self.frozen.thaw();
        }
        let running = match command::start(start, self.places) {
            Ok(running) => running,
            Err(refusal) => return self.refuse(id, refusal.reason(), refusal.to_string()),
        };
        let pid = running.child.id().cast_signed();
        self.outbox.send(Started { session: id, pid });
        let sessions = self.sessions;
        let outbox = Arc::clone(&self.outbox);
        let ended = move || sessions.ended(id, pid);
        let run = || Session::run(start, running, outbox, self.places, self.scope, ended);
        if let Err(error) = sessions.add(id, run) {
            let message = format!("start threads of the agent: {error}");
            self.refuse(id, Reason::Other, message);
        }
    }

    /// Continues a session that is kept.
    fn adopt(&self, adopt: &Adopt) {
        let id = adopt.session;
        let session = match self.sessions.find(adopt) {
            Ok(session) => session,
            Err((reason, message)) => return self.refuse(id, reason, message),
        };
        let pid = session.pid().as_raw();
        // Its output follows.
        self.outbox.send(Started { session: id, pid });
        self.sessions.bind(&session, adopt);
    }

    fn refuse(&self, session: u64, reason: Reason, message: String) {
        self.outbox.send(Refused {
            session,
            reason: reason.into(),
            message,
        });
    }

    /// The host is gone.
    fn leave(&self) {
        self.sessions.leave();
        self.frozen.thaw();
    }

    /// Performs an action in a thread of its own: a disk that does not answer may delay it.
    fn perform(&self, request: Request) {
        let refuse = |number, error: String| {
            self.outbox.send(Answer {
                number,
                error,
                ..Answer::default()
            });
        };
        let number = request.number;
        if self.requests.fetch_add(1, Ordering::AcqRel) >= REQUESTS {
            self.requests.fetch_sub(1, Ordering::AcqRel);
            return refuse(
                number,
                format!("the guest performs {REQUESTS} requests already"),
            );
        }
        let work = Work::begin(request, &self.frozen);
        let outbox = Arc::clone(&self.outbox);
        let frozen = Arc::clone(&self.frozen);
        let requests = self.requests;
        let sessions = self.sessions;
        let freezing = &self.places.freezing;
        let begun = thread::Builder::new().spawn_scoped(self.scope, move || {
            let subjects = Subjects {
                frozen: &frozen,
                freezing,
                sessions,
            };
            let answer = perform(work, &subjects);
            requests.fetch_sub(1, Ordering::AcqRel);
            outbox.send(answer);
        });
        if let Err(error) = begun {
            requests.fetch_sub(1, Ordering::AcqRel);
            refuse(number, format!("start a thread of the agent: {error}"));
        }
    }

    fn with_session(&self, id: u64, act: impl FnOnce(&Session)) {
        // What the host sent before it learned of the session's end has no effect.
        if let Some(session) = self.sessions.get(id) {
            act(&session);
        }
    }
}

fn hello(version: u32, connection: u64) -> GuestHello {
    GuestHello {
        version,
        connection,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        watches_freezes: true,
    }
}

/// The newest version that both have; 0 when there is none.
fn common(host: &HostHello) -> u32 {
    let newest = host.newest.min(VERSION);
    if newest >= host.oldest.max(OLDEST) {
        newest
    } else {
        0
    }
}
