//! Paths in the checkout, and calls of cargo.
//!
//! Invariant: every path is absolute; nothing is written outside `target/` and the stack
//! directories.
//! Failure: only when this program was moved away from the checkout it was built in.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run;

/// The top folder of the repository.
pub(crate) fn root() -> PathBuf {
    // xtask's own folder is one below.
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// The build folder, which also holds tools, the guest image and stamps.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// What `tools` makes, with its stamps.
pub(crate) fn tools() -> PathBuf {
    target().join("tools")
}

/// Where `tools` puts crictl, critest and cargo-deny.
pub(crate) fn tools_bin() -> PathBuf {
    tools().join("bin")
}

/// The guest image that `guest` builds.
pub(crate) fn guest_image() -> PathBuf {
    target().join("guest/hello.qcow2")
}

/// The same guest on a disk that UEFI alone boots.
pub(crate) fn uefi_image() -> PathBuf {
    target().join("guest/uefi.qcow2")
}

/// The guest image with the kernel for all machines, which `guest --generic` builds.
pub(crate) fn generic_image() -> PathBuf {
    target().join("guest/generic.qcow2")
}

/// The image of Debian that `guest --debian` builds.
pub(crate) fn debian_image() -> PathBuf {
    target().join("guest/debian.qcow2")
}

/// cargo, in the top folder.
pub(crate) fn cargo() -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = run::command(program);
    // Build scripts are run again when PATH changes: it must be the same as by hand. The same for
    // what cargo reports of the package that it runs: crates such as ring build again when it
    // changes.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    cargo
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .current_dir(root());
    cargo
}
