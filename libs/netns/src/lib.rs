//! The network of one pod as seen from inside its namespace: the namespace itself, the links in it,
//! the bridge and tap that lead to the guest, and the servers that configure the guest's addresses.
//!
//! Invariant: no thread of the caller ever changes its namespace; whatever must run inside one runs
//! on a thread of its own that ends afterwards. Sockets made inside stay there and are driven from
//! outside.
//! Failure: every step reports which one it was; [`bridge_setup::restore`] undoes as much as it
//! can.
//!
//! # Example
//!
//! ```
//! use std::path::Path;
//!
//! use netns::{Mac, Namespace};
//!
//! let mac: Mac = "52:54:00:12:34:56".parse()?;
//! println!("{mac}");
//! if let Some(namespace) = Namespace::open(Path::new("/run/netns/pod"))? {
//!     println!("{}", namespace.path().display());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod answers;
pub mod bridge_setup;
mod counters;
pub mod dhcp;
mod filter;
pub mod ipv6;
mod mac;
mod namespace;
pub mod netlink;
mod node_route;
mod pace;
mod sysctl;
mod tap;

pub use answers::{Answers, answers};
pub use counters::{LinkCounters, counters};
pub use filter::{Guard, available as filter_available};
pub use mac::{Mac, ParseMacError};
pub use namespace::{Error as NamespaceError, Namespace};
pub use node_route::{NodeRoute, node_routes};
pub use tap::{Error as TapError, Tap, open as open_tap};
