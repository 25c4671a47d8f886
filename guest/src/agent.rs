//! Answers the host's messages.
//!
//! Invariant: sessions belong to the connection that started them; the next one finds none. The
//! reader waits for nothing but the port, apart from writes that the host reads at any time.
//! Failure: the port's error.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope};

use guestapi::to_guest::Kind;
use guestapi::{
    Answer, Data, Decoder, GuestHello, HostHello, MAX_FRAME, Reason, Refused, Request, SESSIONS,
    Start, Started, ToGuest, VERSION,
};

use crate::actions::{Frozen, perform};
use crate::command;
use crate::outbox::Outbox;
use crate::port::Port;
use crate::session::Session;

/// Bytes that are read at once.
const READ: usize = 32 << 10;

/// Requests that are performed at once.
const REQUESTS: usize = 8;

/// Sessions by number.
type Sessions = Mutex<HashMap<u64, Arc<Session>>>;

/// Serves a port until it is lost. A socket is served until its end.
pub fn serve(port: &Port) -> io::Result<()> {
    let sessions = Sessions::default();
    let outbox = Outbox::new(port);
    let (frozen, requests) = (Arc::<Frozen>::default(), AtomicUsize::new(0));
    thread::scope(|scope| {
        let mut agent = Agent {
            sessions: &sessions,
            outbox,
            scope,
            frozen: Arc::clone(&frozen),
            requests: &requests,
        };
        let served = agent.serve(port);
        agent.close_all();
        served
    })
}

struct Agent<'scope, 'env> {
    sessions: &'env Sessions,
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
                self.close_all();
                self.frozen.thaw();
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
                self.close_all();
                self.frozen.thaw();
                self.outbox.send(hello(common(&host), host.connection));
            }
            Some(Kind::Start(start)) => self.start(&start),
            Some(Kind::Request(request)) => self.perform(request),
            Some(Kind::Data(Data {
                session, data, end, ..
            })) => self.of(session, |session| session.write(data.to_vec(), end)),
            Some(Kind::Credit(credit)) => self.of(credit.session, |session| {
                session.acknowledge(credit.stream(), credit.bytes);
            }),
            Some(Kind::Resize(resize)) => self.of(resize.session, |session| {
                session.resize(resize.terminal.unwrap_or_default());
            }),
            Some(Kind::Signal(signal)) => {
                self.of(signal.session, |session| session.signal(signal.number));
            }
            Some(Kind::Close(close)) => {
                let session = lock(self.sessions).remove(&close.session);
                if let Some(session) = session {
                    session.close();
                }
            }
        }
    }

    fn start(&self, start: &Start) {
        let id = start.session;
        let refuse = |reason: Reason, message: String| {
            self.outbox.send(Refused {
                session: id,
                reason: reason.into(),
                message,
            });
        };
        {
            let sessions = lock(self.sessions);
            if sessions.len() >= SESSIONS || sessions.contains_key(&id) {
                let message = format!("the guest has {} sessions already", sessions.len());
                return refuse(Reason::TooMany, message);
            }
        }
        let running = match command::start(start) {
            Ok(running) => running,
            Err(refusal) => return refuse(refusal.reason(), refusal.to_string()),
        };
        let pid = running.child.id().cast_signed();
        self.outbox.send(Started { session: id, pid });
        let sessions = self.sessions;
        // The session is in the table before its end can remove it.
        let mut table = lock(sessions);
        let outbox = Arc::clone(&self.outbox);
        let ended = move || {
            lock(sessions).remove(&id);
        };
        match Session::run(id, running, outbox, self.scope, ended) {
            Ok(session) => {
                table.insert(id, session);
            }
            Err(error) => {
                drop(table);
                refuse(
                    Reason::Other,
                    format!("start threads of the agent: {error}"),
                );
            }
        }
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
        let (outbox, frozen) = (Arc::clone(&self.outbox), Arc::clone(&self.frozen));
        let requests = self.requests;
        let begun = thread::Builder::new().spawn_scoped(self.scope, move || {
            let answer = perform(&request, &frozen);
            requests.fetch_sub(1, Ordering::AcqRel);
            outbox.send(answer);
        });
        if let Err(error) = begun {
            requests.fetch_sub(1, Ordering::AcqRel);
            refuse(number, format!("start a thread of the agent: {error}"));
        }
    }

    fn of(&self, id: u64, act: impl FnOnce(&Session)) {
        let session = lock(self.sessions).get(&id).cloned();
        // What the host sent before it learned of the session's end has no effect.
        if let Some(session) = session {
            act(&session);
        }
    }

    fn close_all(&self) {
        let all = std::mem::take(&mut *lock(self.sessions));
        for session in all.into_values() {
            session.close();
        }
    }
}

fn lock(sessions: &Sessions) -> MutexGuard<'_, HashMap<u64, Arc<Session>>> {
    sessions.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hello(version: u32, connection: u64) -> GuestHello {
    GuestHello {
        version,
        connection,
        program: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// The version that both have; 0 when there is none.
fn common(host: &HostHello) -> u32 {
    match (host.oldest..=host.newest).contains(&VERSION) {
        true => VERSION,
        false => 0,
    }
}
