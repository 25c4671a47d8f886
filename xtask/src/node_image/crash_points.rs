//! Keeps programs with crash points out of what is for nodes.
//!
//! Invariant: a program that can be killed by a file has the name of the variable that arms its
//! crash points in it (`faultpoint::DIR_VARIABLE`); a test of `vmlet-agent` proves it.
//! Failure: names the programs that have crash points, or the one that cannot be read. `cargo test
//! --release` makes such programs, as all test builds do.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

/// What a program with crash points contains.
const MARKER: &str = "VMLET_FAULT_DIR";

/// Fails if one of the programs has crash points.
pub(super) fn refuse(programs: &[PathBuf]) -> Result<()> {
    let mut found = Vec::new();
    for program in programs {
        let content = fs::read(program).with_context(|| format!("read {}", program.display()))?;
        // The standard library is always optimised, as xtask is not: this takes a moment only.
        if String::from_utf8_lossy(&content).contains(MARKER) {
            found.push(program.display().to_string());
        }
    }
    if !found.is_empty() {
        bail!(
            "programs with crash points are not for nodes: {}; build them again without the feature \
             fault-injection",
            found.join(", ")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;

    #[test]
    fn a_program_with_crash_points_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let [plain, armed] = ["plain", "armed"].map(|name| dir.path().join(name));
        fs::write(&plain, b"\x7fELF\xff\0VMLET_FAULT\0_DIR").unwrap();
        fs::write(&armed, b"\x7fELF\xff\0VMLET_FAULT_DIRRUST_LOG\xfe").unwrap();
        refuse(slice::from_ref(&plain)).unwrap();
        let error = refuse(&[plain, armed.clone()]).unwrap_err().to_string();
        assert!(error.contains(&armed.display().to_string()), "{error}");
        assert!(!error.contains("plain"), "{error}");
        refuse(&[dir.path().join("absent")]).unwrap_err();
    }
}
