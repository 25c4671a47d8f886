//! The program `vmlet-agent`, as an operator starts it.
//!
//! Invariant: what it cannot use is refused with exit code 64 and one line that states what.
//! Failure: the test shows what the program printed.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::process::{Command, Output};

fn agent(arguments: &[&str]) -> Output {
    let mut agent = Command::new(env!("CARGO_BIN_EXE_vmlet-agent"));
    agent.env_clear().args(arguments).output().unwrap()
}

#[test]
fn it_reports_its_version() {
    let output = agent(&["--version"]);
    assert!(output.status.success(), "{output:?}");
    let version = format!("vmlet-agent {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), version);
}

#[test]
fn a_configuration_that_it_cannot_use_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("agent.toml");
    std::fs::write(&file, "no_such_setting = 1\n").unwrap();
    for config in [file, dir.path().join("absent.toml")] {
        let config = config.to_str().unwrap();
        let output = agent(&["--config", config]);
        let reported = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{reported}");
        assert!(
            reported.starts_with("vmlet-agent: ") && reported.contains(config),
            "{reported}"
        );
        assert_eq!(reported.lines().count(), 1, "{reported}");
    }
}

#[test]
fn a_test_build_has_crash_points_and_contains_the_name_by_which_they_are_found() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_vmlet-agent")).unwrap();
    assert!(String::from_utf8_lossy(&program).contains("VMLET_FAULT_DIR"));
}
