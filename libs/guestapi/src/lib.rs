//! The protocol between the daemon and `vmlet-guest`, over a virtio-serial port.
//!
//! A port is a stream of bytes that knows no connections: either side may begin to read in the
//! middle of what was meant for its predecessor. Therefore each message is a frame that ends with a
//! byte which is nowhere else ([`frame`]), and a connection begins with [`HostHello`], which the
//! guest repeats in part in its [`GuestHello`].
//!
//! A session is one command. Its number is chosen by the host, which begins at a random number in
//! each connection. Data flows by credit: a side sends at most [`WINDOW`] bytes of a stream beyond
//! what the other side has acknowledged by [`Credit`].
//!
//! Invariant: memory is bounded by what a frame may have ([`MAX_FRAME`]), whatever the peer sends.
//! Failure: a frame that is damaged is dropped and counted; the next one is read.
//!
//! # Example
//!
//! ```
//! use guestapi::{Decoder, ToGuest, encode, to_guest};
//!
//! let message = ToGuest::from(guestapi::Signal { session: 1, number: 15 });
//! let mut decoder = Decoder::new(guestapi::MAX_FRAME);
//! let read = decoder.feed::<ToGuest>(&encode(&message)).next();
//! assert_eq!(read, Some(message));
//! ```

mod frame;
mod message;

pub use frame::{Decoder, Frames, encode};
pub use message::{
    Adopt, Answer, Close, Confinement, Credit, Data, Exited, Facts, FileSystem, Freeze, FromGuest,
    GuestHello, HostHello, Interface, Reason, Refused, ReportFacts, ReportUsage, Request, Resize,
    SetLimits, SetTime, Setting, Signal, Start, Started, Stream, Terminal, Thaw, ToGuest, Usage,
    User, View, Volume, from_guest, request, to_guest,
};

/// Name of the virtio-serial port.
pub const PORT: &str = "dev.vmlet.guest.0";

/// Tag of the virtiofs device with the volumes of a pod.
pub const POD_SHARE: &str = "vmlet-pod";

/// The newest version. Version 2 has kept sessions, confinement and [`Usage`]; version 3 has
/// limits by cgroups, [`View`] and kernel parameters; version 4 has [`Volume`].
pub const VERSION: u32 = 4;

/// The oldest version that the host serves.
pub const OLDEST: u32 = 1;

/// Bytes of one stream of one session that may be on their way.
pub const WINDOW: usize = 64 << 10;

/// Most bytes of data in one message.
pub const CHUNK: usize = 16 << 10;

/// Longest message to the guest: a command line of 256 KiB and its environment.
pub const MAX_FRAME: usize = 512 << 10;

/// Longest message from the guest.
pub const MAX_FRAME_OF_GUEST: usize = 64 << 10;

/// Sessions of one connection at a time, and sessions that a guest keeps.
pub const SESSIONS: usize = 64;

/// Longest name of a kept session in bytes. It has letters, digits, `-` and `_`.
pub const LONGEST_NAME: usize = 64;

/// Paths or settings of one list.
pub const SETTINGS: usize = 64;

/// File systems of one report.
pub const FILE_SYSTEMS: usize = 32;

/// Network interfaces of one report, and addresses of one of them.
pub const INTERFACES: usize = 16;

/// Longest time in seconds that file systems are frozen.
pub const LONGEST_FREEZE: u32 = 60;

/// Bytes of each file that a report has.
pub const PUBLISHED: usize = 4096;

/// Longest text of a report, in bytes.
pub const REPORT_TEXT: usize = 256;
