//! The agent of Vmlet in a guest: runs the commands of `kubectl exec`, reports facts about the guest,
//! sets its clock, and freezes its file systems.
//!
//! ```text
//! virtio-serial port ─► port ─► agent ─► session ─► process
//!                        ▲                  │
//!                        └──── outbox ◄─────┘
//! ```
//!
//! One thread reads the port and never waits for anything else; each session has a thread for each
//! of its streams, and one that waits for its process. The protocol is that of [`guestapi`].
//!
//! Invariant: a command ends with its session: when the host closes it, begins a new connection or
//! disconnects, everything that the command started is killed. A session that is kept ends only when
//! the host closes it: another connection adopts it, with the output that the host has not
//! acknowledged. Memory is bounded by the windows of [`guestapi::SESSIONS`] sessions of each kind.
//! Failure: a session that cannot start is refused in words; [`serve`] returns an error when the
//! port is lost.
//!
//! # Example
//!
//! ```no_run
//! let port = guest::Port::open("/dev/virtio-ports/dev.vmlet.guest.0".as_ref())?;
//! guest::serve(&port, &guest::Places::of_guest())?;
//! # Ok::<(), std::io::Error>(())
//! ```

mod actions;
mod agent;
mod cgroups;
mod command;
mod confine;
mod facts;
mod frozen;
mod hooks;
mod input;
mod mounts;
mod outbox;
mod outputs;
mod places;
mod port;
mod processes;
mod sender;
mod session;
mod sessions;
mod step;
mod sys;
mod tail;
mod usage;
mod users;
mod view;
mod volumes;
mod watchdog;

pub use agent::serve;
pub use places::Places;
pub use port::Port;
pub use watchdog::watch;
