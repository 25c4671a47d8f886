//! Where the workspace is, and what cargo says of it.
//!
//! Invariant: cargo reads files only.
//! Failure: cargo's own words.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::de::DeserializeOwned;

/// The top folder.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The packages of the workspace, as `cargo metadata` lists them.
pub(crate) fn metadata<T: DeserializeOwned>() -> T {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--no-deps",
            "--format-version",
            "1",
            "--offline",
        ])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}
