//! Bounds the files that QEMU writes.
//!
//! Invariant: a write beyond the bound fails with an error, and ends no process. The bound is for each
//! file, and no process of the machine can lift it.
//! Failure: the kernel's error.
#![allow(unsafe_code)] // To ignore a signal has no safe form; the comment states why it is sound.

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};

/// From here on no file grows beyond so many bytes.
pub(crate) fn files(most: u64) -> Result<(), nix::Error> {
    // SAFETY: no handler runs; the program that this process becomes inherits that the signal is ignored.
    unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }?;
    setrlimit(Resource::RLIMIT_FSIZE, most, most)
}
