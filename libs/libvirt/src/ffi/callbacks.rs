//! Life-cycle, reboot, agent and close callbacks, turned into messages on a channel.
//!
//! Invariant: C holds only a number; the channel lives in [`LISTENERS`] under that number. A
//! callback that comes after its subscription has gone finds nothing and does nothing, so no order
//! of calls can touch freed memory. Callbacks copy, send and return; they never call back into the
//! connection.
//! Failure: a subscription that libvirt refuses is undone before the error is returned.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::UnboundedSender;
use uuid::Uuid;
use virt::connect::Connect;
use virt::error::{Error, ErrorNumber};
use virt::sys;

/// What a callback has reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// A domain changed; the numbers are libvirt's own.
    Lifecycle {
        domain: Uuid,
        event: c_int,
        detail: c_int,
    },
    /// A guest began to boot again in the emulator that it had: it rebooted, or was reset.
    Reset { domain: Uuid },
    /// The agent in a guest opened its channel.
    AgentConnected { domain: Uuid },
    /// The connection is closed; the number is libvirt's reason.
    Closed { reason: c_int },
}

/// Which callbacks a subscription requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Everything,
    CloseOnly,
}

type Listeners = BTreeMap<usize, UnboundedSender<Signal>>;

static LISTENERS: Mutex<Listeners> = Mutex::new(BTreeMap::new());
static NEXT_KEY: AtomicUsize = AtomicUsize::new(1);

/// Callbacks registered on one connection; dropping it removes them.
#[derive(Debug)]
pub(crate) struct Subscription {
    connect: Connect,
    key: usize,
    /// libvirt's ids of the registered event callbacks.
    events: Vec<c_int>,
    close: bool,
}

/// How C passes callbacks of every kind of event.
type AnyCallback = unsafe extern "C" fn(sys::virConnectPtr, sys::virDomainPtr, *mut c_void);

impl Subscription {
    /// Sends life-cycle, reboot and agent events of all domains, and the end of the connection, to `sink`.
    pub(crate) fn everything(
        connect: &Connect,
        sink: UnboundedSender<Signal>,
    ) -> Result<Self, Error> {
        Self::new(connect, sink, Wanted::Everything)
    }

    /// Sends only the end of the connection to `sink`.
    pub(crate) fn close_only(
        connect: &Connect,
        sink: UnboundedSender<Signal>,
    ) -> Result<Self, Error> {
        Self::new(connect, sink, Wanted::CloseOnly)
    }

    fn new(
        connect: &Connect,
        sink: UnboundedSender<Signal>,
        wanted: Wanted,
    ) -> Result<Self, Error> {
        let key = NEXT_KEY.fetch_add(1, Ordering::Relaxed);
        listeners().insert(key, sink);
        // From here on Drop undoes whatever has been done.
        let mut subscription = Self {
            connect: connect.clone(),
            key,
            events: Vec::new(),
            close: false,
        };
        subscription.close = subscription.register_close()?;
        if wanted == Wanted::Everything {
            subscription.register_lifecycle()?;
            subscription.register(sys::VIR_DOMAIN_EVENT_ID_REBOOT, on_reboot)?;
            subscription.register_agent()?;
        }
        Ok(subscription)
    }

    /// Says whether the driver has close callbacks at all: those without a daemon have none.
    fn register_close(&self) -> Result<bool, Error> {
        // SAFETY: the connection is alive for the whole call, since `self` holds a reference;
        // `on_close` has the type that C expects; the opaque value is a number that is never
        // dereferenced, so that there is nothing to free.
        let result = unsafe {
            sys::virConnectRegisterCloseCallback(
                self.connect.as_ptr(),
                Some(on_close),
                ptr::without_provenance_mut(self.key),
                None,
            )
        };
        if result == 0 {
            return Ok(true);
        }
        let error = Error::last_error();
        if error.code().is(ErrorNumber::NoSupport) {
            Ok(false)
        } else {
            Err(error)
        }
    }

    fn register_lifecycle(&mut self) -> Result<(), Error> {
        type Lifecycle = unsafe extern "C" fn(
            sys::virConnectPtr,
            sys::virDomainPtr,
            c_int,
            c_int,
            *mut c_void,
        ) -> c_int;
        // SAFETY: libvirt calls the callback of event id LIFECYCLE with exactly the arguments of
        // `on_lifecycle`; the generic type is only how every kind of callback is passed (its C
        // macro VIR_DOMAIN_EVENT_CALLBACK is the same cast).
        let callback = unsafe { transmute::<Lifecycle, AnyCallback>(on_lifecycle) };
        self.register(sys::VIR_DOMAIN_EVENT_ID_LIFECYCLE, callback)
    }

    fn register_agent(&mut self) -> Result<(), Error> {
        type Agent =
            unsafe extern "C" fn(sys::virConnectPtr, sys::virDomainPtr, c_int, c_int, *mut c_void);
        // SAFETY: libvirt calls the callback of event id AGENT_LIFECYCLE with exactly the arguments
        // of `on_agent`; the cast is that of `register_lifecycle`.
        let callback = unsafe { transmute::<Agent, AnyCallback>(on_agent) };
        self.register(sys::VIR_DOMAIN_EVENT_ID_AGENT_LIFECYCLE, callback)
    }

    /// `callback` must be what libvirt expects for that kind of event.
    fn register(
        &mut self,
        kind: sys::virDomainEventID,
        callback: AnyCallback,
    ) -> Result<(), Error> {
        // SAFETY: the connection is alive for the whole call, since `self` holds a reference; the
        // null domain means all domains; the opaque value is a mere number, so that there is
        // nothing to free.
        let id = unsafe {
            sys::virConnectDomainEventRegisterAny(
                self.connect.as_ptr(),
                ptr::null_mut(),
                kind.cast_signed(),
                Some(callback),
                ptr::without_provenance_mut(self.key),
                None,
            )
        };
        if id < 0 {
            return Err(Error::last_error());
        }
        self.events.push(id);
        Ok(())
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        listeners().remove(&self.key);
        for &id in &self.events {
            // SAFETY: the connection is alive (`self` holds a reference) and `id` came from its own
            // registration. On a dead connection the call fails after having dropped the callback.
            unsafe { sys::virConnectDomainEventDeregisterAny(self.connect.as_ptr(), id) };
        }
        if self.close {
            // SAFETY: as above; after the callback has run, libvirt has already forgotten it and
            // answers with an error that changes nothing.
            unsafe {
                sys::virConnectUnregisterCloseCallback(self.connect.as_ptr(), Some(on_close))
            };
        }
    }
}

unsafe extern "C" fn on_lifecycle(
    _connect: sys::virConnectPtr,
    domain: sys::virDomainPtr,
    event: c_int,
    detail: c_int,
    opaque: *mut c_void,
) -> c_int {
    // SAFETY: libvirt keeps `domain` alive while the callback runs.
    if let Some(domain) = unsafe { uuid(domain) } {
        let signal = Signal::Lifecycle {
            domain,
            event,
            detail,
        };
        deliver(opaque, signal);
    }
    0
}

unsafe extern "C" fn on_reboot(
    _connect: sys::virConnectPtr,
    domain: sys::virDomainPtr,
    opaque: *mut c_void,
) {
    // SAFETY: libvirt keeps `domain` alive while the callback runs.
    if let Some(domain) = unsafe { uuid(domain) } {
        deliver(opaque, Signal::Reset { domain });
    }
}

unsafe extern "C" fn on_agent(
    _connect: sys::virConnectPtr,
    domain: sys::virDomainPtr,
    state: c_int,
    _reason: c_int,
    opaque: *mut c_void,
) {
    if state.cast_unsigned() != sys::VIR_CONNECT_DOMAIN_EVENT_AGENT_LIFECYCLE_STATE_CONNECTED {
        return;
    }
    // SAFETY: libvirt keeps `domain` alive while the callback runs.
    if let Some(domain) = unsafe { uuid(domain) } {
        deliver(opaque, Signal::AgentConnected { domain });
    }
}

/// The UUID of a domain, which must be alive.
unsafe fn uuid(domain: sys::virDomainPtr) -> Option<Uuid> {
    let mut uuid = [0_u8; 16];
    // SAFETY: the domain is alive, and the buffer has the 16 bytes (VIR_UUID_BUFLEN) that the
    // function fills.
    let result = unsafe { sys::virDomainGetUUID(domain, uuid.as_mut_ptr()) };
    (result == 0).then(|| Uuid::from_bytes(uuid))
}

unsafe extern "C" fn on_close(_connect: sys::virConnectPtr, reason: c_int, opaque: *mut c_void) {
    deliver(opaque, Signal::Closed { reason });
}

fn deliver(opaque: *mut c_void, signal: Signal) {
    if let Some(sink) = listeners().get(&opaque.addr()) {
        // A receiver that has gone has no use for the signal.
        let _ = sink.send(signal);
    }
}

fn listeners() -> MutexGuard<'static, Listeners> {
    // A map is whole after any panic: each operation on it is a single call.
    LISTENERS.lock().unwrap_or_else(PoisonError::into_inner)
}
