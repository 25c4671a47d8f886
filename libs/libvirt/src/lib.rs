//! The hypervisor as the daemon sees it, and libvirt behind it.
//!
//! Invariant: nothing outside this crate names libvirt's C library; only domains that carry Vmlet's
//! metadata element are ever listed or touched. Every call has a deadline and never blocks the
//! runtime.
//! Failure: [`Error`] states whether the connection is down ([`Error::is_unavailable`], try again
//! later) or the request itself was refused.
//!
//! # Example
//!
//! ```
//! # async fn print() -> libvirt::Result<()> {
//! use libvirt::{FakeHypervisor, Hypervisor};
//!
//! let hypervisor = FakeHypervisor::default();
//! let versions = hypervisor.versions().await?;
//! println!("{versions:?}");
//! # Ok(())
//! # }
//! ```

mod block_jobs;
mod capabilities;
mod domain;
mod error;
mod event;
#[cfg(feature = "fake")]
mod fake;
mod ffi;
#[doc(hidden)]
pub mod fuzzing;
pub mod guest;
#[cfg(feature = "harness")]
pub mod harness;
mod hypervisor;
mod libvirt;
mod metadata;
mod read;
mod saved;
mod size;

pub use block_jobs::{BlockCommit, BlockJob, BlockJobEnd, OpenFile};
pub use capabilities::DomainType;
pub use domain::{
    Cable, DiskFailure, DomainInfo, DomainStats, End, FailedDisk, Pause, Power, Shutdown, State,
};
pub use error::{Error, Result};
pub use event::Event;
#[cfg(feature = "fake")]
pub use fake::{FakeHypervisor, Missed};
pub use hypervisor::{Hypervisor, Versions};
pub use libvirt::{Libvirt, Observer, Settings};
pub use metadata::{METADATA_NAMESPACE, MachineElement};
pub use read::is_emulated;
pub use saved::{MemorySwitch, is_saved_memory, saved_description};
pub use size::{Layout, Size, Spare};
