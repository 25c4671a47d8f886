//! Named points in a program where a test may kill it, as `kill -9` would.
//!
//! Invariant: a point does nothing unless the crate is built with `enabled`, the environment names
//! a directory in `VMLET_FAULT_DIR`, and that directory holds a file with the point's name. The
//! file is removed first, so that each armed point kills exactly once.
//! Failure: the process is killed by SIGKILL. Nothing is flushed, no destructor runs: that is the
//! purpose.
//!
//! # Example
//!
//! ```
//! fn commit() {
//!     // With the feature `enabled`, a test can end the process here.
//!     faultpoint::point("store.commit");
//! }
//! commit();
//! ```

/// Environment variable naming the directory in which points are armed.
pub const DIR_VARIABLE: &str = "VMLET_FAULT_DIR";

/// Kills this process here if the point `name` is armed.
#[cfg(feature = "enabled")]
pub fn point(name: &str) {
    let Some(dir) = directory() else { return };
    if std::fs::remove_file(dir.join(name)).is_ok() {
        // The process ends inside this call.
        let _ = nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::Signal::SIGKILL);
    }
}

/// Does nothing: this build has no crash points.
#[cfg(not(feature = "enabled"))]
#[inline(always)]
pub const fn point(_name: &str) {}

#[cfg(feature = "enabled")]
fn directory() -> Option<&'static std::path::Path> {
    static DIR: std::sync::OnceLock<Option<std::path::PathBuf>> = std::sync::OnceLock::new();
    // The compiler must not take the name apart: by it, `cargo xtask image` finds programs that
    // have crash points.
    let name = std::hint::black_box(DIR_VARIABLE);
    DIR.get_or_init(|| std::env::var_os(name).map(Into::into))
        .as_deref()
}
