//! Keeps a connection to libvirt, and reports when it is established and lost.
//!
//! Invariant: at most one attempt to connect is in progress; [`Event::Connected`] precedes every
//! event of its session, [`Event::Disconnected`] follows the last; a session is closed on a
//! blocking thread.
//! Failure: the link is down with a reason, and the next attempt follows after 100 ms, later after
//! 250 ms: one at a socket that is not there costs next to nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{broadcast, oneshot};
use tokio::time::Instant;
use virt::connect::Connect;
use virt::error::{Error as VirtError, ErrorNumber};

use super::event_loop;
use super::lane::Lane;
use super::resets::Resets;
use crate::error::readable;
use crate::ffi::{Signal, Subscription};
use crate::{Error, Event, Result, event};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// A libvirt that is silent for this many seconds, this many times in a row, is given up.
const KEEP_ALIVE: (i32, u32) = (5, 3);

/// What is known about the connection now.
#[derive(Debug)]
pub(super) struct Link {
    session: RwLock<Result<Arc<Session>, String>>,
    events: broadcast::Sender<Event>,
}

/// Open connections, as many as there are permits: calls on one connection wait for each other,
/// whatever libvirt reports of its threads.
#[derive(Debug)]
pub(super) struct Session {
    // Subscriptions go before the connections that they are registered on.
    _subscriptions: Vec<Subscription>,
    /// Idle connections, by lane.
    idle: [Mutex<Vec<Connect>>; Lane::ALL.len()],
    signals: UnboundedSender<Signal>,
}

/// A connection that is in use.
#[derive(Debug)]
pub(super) struct Borrowed {
    session: Arc<Session>,
    lane: Lane,
    connect: Connect,
}

impl Link {
    pub(super) fn new(events: broadcast::Sender<Event>) -> Self {
        Self {
            session: RwLock::new(Err("not connected yet".to_owned())),
            events,
        }
    }

    /// The session of now, or why there is none.
    pub(super) fn session(&self) -> Result<Arc<Session>> {
        let session = self.session.read().unwrap_or_else(PoisonError::into_inner);
        session
            .clone()
            .map_err(|reason| Error::Unavailable { reason })
    }

    pub(super) fn events(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    fn put(&self, now: Result<Arc<Session>, String>) -> Result<Arc<Session>, String> {
        let mut session = self.session.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut session, now)
    }

    fn emit(&self, event: Event) {
        // No listener is fine: events are hints, listeners reconcile when they subscribe.
        let _ = self.events.send(event);
    }
}

impl Session {
    fn open(uri: &str, parallel: usize, signals: &UnboundedSender<Signal>) -> Result<Self, String> {
        event_loop::ensure()?;
        let open = || -> Result<Self, VirtError> {
            let mut idle = <[Vec<Connect>; Lane::ALL.len()]>::default();
            let mut subscriptions = Vec::new();
            for lane in Lane::ALL {
                for _ in 0..lane.width(parallel) {
                    let connect = connect(uri)?;
                    subscriptions.push(if subscriptions.is_empty() {
                        Subscription::everything(&connect, signals.clone())?
                    } else {
                        Subscription::close_only(&connect, signals.clone())?
                    });
                    idle[lane as usize].push(connect);
                }
            }
            Ok(Self {
                _subscriptions: subscriptions,
                idle: idle.map(Mutex::new),
                signals: signals.clone(),
            })
        };
        open().map_err(|e| readable(e.message()))
    }

    /// An idle connection of this lane; `None` only when more are requested than there are permits.
    pub(super) fn borrow(self: Arc<Self>, lane: Lane) -> Option<Borrowed> {
        let connect = self.idle(lane).pop()?;
        Some(Borrowed {
            session: self,
            lane,
            connect,
        })
    }

    fn idle(&self, lane: Lane) -> MutexGuard<'_, Vec<Connect>> {
        let idle = &self.idle[lane as usize];
        idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Borrowed {
    pub(super) const fn connect(&self) -> &Connect {
        &self.connect
    }

    /// Checks, without a call to libvirt, whether the connection is still open; ends the session if
    /// not.
    pub(super) fn is_alive(&self) -> bool {
        let alive = self.connect.is_alive().unwrap_or(false);
        if !alive {
            let reason = virt::sys::VIR_CONNECT_CLOSE_REASON_ERROR.cast_signed();
            // The close callback reports the same; whichever comes first counts.
            let _ = self.session.signals.send(Signal::Closed { reason });
        }
        alive
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let connect = self.connect.clone();
        self.session.idle(self.lane).push(connect);
    }
}

fn connect(uri: &str) -> Result<Connect, VirtError> {
    let connect = Connect::open(Some(uri))?;
    let (interval, count) = KEEP_ALIVE;
    match connect.set_keep_alive(interval, count) {
        // Drivers inside this process have nothing to keep alive.
        Err(error) if !error.code().is(ErrorNumber::NoSupport) => Err(error),
        _ => Ok(connect),
    }
}

/// Connects, passes events on, and connects again, until `stop` is dropped.
pub(super) async fn supervise(
    uri: String,
    parallel: usize,
    link: Arc<Link>,
    mut stop: oneshot::Receiver<()>,
) {
    let mut pause = FIRST_PAUSE;
    loop {
        let (sink, mut signals) = unbounded_channel();
        let opened = tokio::select! {
            _ = &mut stop => return,
            opened = open(uri.clone(), parallel, sink) => opened,
        };
        match opened {
            Ok(session) => {
                pause = FIRST_PAUSE;
                tracing::info!("libvirt connected");
                let _ = link.put(Ok(Arc::new(session)));
                link.emit(Event::Connected);
                let end = tokio::select! {
                    _ = &mut stop => None,
                    reason = pump(&mut signals, &link) => Some(reason),
                };
                let old = link.put(Err(end.unwrap_or("closed").to_owned()));
                tokio::task::spawn_blocking(move || drop(old));
                let Some(reason) = end else { return };
                tracing::warn!(reason, "libvirt disconnected");
                link.emit(Event::Disconnected);
            }
            Err(reason) => {
                tracing::debug!(reason, "libvirt unreachable");
                let _ = link.put(Err(reason));
            }
        }
        tokio::select! {
            _ = &mut stop => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Opens a session on a thread of its own: a libvirt that accepts and says nothing blocks it
/// without limit, which must not keep the runtime from ending.
async fn open(
    uri: String,
    parallel: usize,
    signals: UnboundedSender<Signal>,
) -> Result<Session, String> {
    let (answer, opened) = oneshot::channel();
    std::thread::Builder::new()
        .name("libvirt-open".to_owned())
        .spawn(move || {
            // If no caller waits any more, the session is closed here.
            drop(answer.send(Session::open(&uri, parallel, &signals)));
        })
        .map_err(|e| format!("cannot start a thread: {e}"))?;
    opened
        .await
        .unwrap_or_else(|_| Err("the attempt to connect was lost".to_owned()))
}

/// Passes events on until the connection ends; returns why it did.
async fn pump(signals: &mut UnboundedReceiver<Signal>, link: &Link) -> &'static str {
    let mut resets = Resets::default();
    while let Some(signal) = signals.recv().await {
        match signal {
            Signal::Closed { reason } => return event::close_reason(reason),
            Signal::Reset { domain } => {
                if resets.counts(domain, Instant::now()) {
                    link.emit(Event::Reset(domain));
                }
            }
            Signal::AgentConnected { domain } => link.emit(Event::AgentConnected(domain)),
            Signal::Lifecycle {
                domain,
                event,
                detail,
            } => {
                if let Some(event) = event::from_lifecycle(domain, event, detail) {
                    link.emit(event);
                }
            }
        }
    }
    "the session is gone"
}
