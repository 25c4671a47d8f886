//! Settings as operators write them.
//!
//! Invariant: every test names a file of its own.
//! Failure: the assertion shows the message that an operator would see.

use std::path::Path;

use clap::Parser;
use service::settings::{Flags, check_page, layered};
use service::telemetry;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    settings: Flags<Config>,
}

fn load_text(text: &str, flags: &[&str]) -> Result<Config, String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("controller.toml");
    std::fs::write(&file, text).unwrap();
    let mut line = vec!["vmlet-controller", "--config", file.to_str().unwrap()];
    line.extend(flags);
    let line = Line::try_parse_from(line).unwrap();
    let effective = layered(&line.settings, []).map_err(|error| telemetry::one_line(&error))?;
    Ok(effective.config)
}

#[test]
fn an_empty_file_means_the_defaults() {
    assert_eq!(load_text("", &[]).unwrap(), Config::default());
}

#[test]
fn flags_win_over_the_file() {
    let text = "namespace = \"a\"\n[runner]\nworkers = 3\n";
    let config = load_text(text, &["--runner-workers", "5"]).unwrap();
    assert_eq!(config.namespace, "a");
    assert_eq!(config.runner.workers, 5);
}

#[test]
fn an_unknown_key_is_refused_with_its_line() {
    let error = load_text("[runner]\nworkes = 3\n", &[]).unwrap_err();
    assert!(
        error.contains("line 2") && error.contains("workes"),
        "{error}"
    );
}

#[rstest::rstest]
#[case::no_worker("[runner]\nworkers = 0", "runner.workers")]
#[case::polling("[runner]\nresync = \"5s\"", "runner.resync")]
#[case::polling_what_waits("[runner]\nrecheck = \"5s\"", "runner.recheck")]
#[case::late_renewal("[lease]\nrenew_deadline = \"15s\"", "lease.renew_deadline")]
#[case::bad_name("namespace = \"A b\"", "namespace")]
#[case::more_than_all(
    "[machines]\ndisk_request_percent = 101",
    "machines.disk_request_percent"
)]
#[case::bad_mode("[machines]\nfast_deploy = \"quick\"", "machines.fast_deploy")]
fn what_cannot_be_run_is_refused(#[case] text: &str, #[case] names: &str) {
    let error = load_text(text, &[]).unwrap_err();
    assert!(error.contains(names), "{error}");
}

#[test]
fn there_is_always_room_for_one_create() {
    let mut config = Config::default();
    assert_eq!(config.create_slots(), 6);
    config.runner.workers = 1;
    assert_eq!(config.create_slots(), 1);
}

#[test]
fn the_reference_page_describes_these_settings() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/controller-configuration.md");
    check_page::<Config>(&page, "").unwrap();
}

#[test]
fn single_numbers_can_be_chosen() {
    let config = load_text("[priority.levels]\ninitial = -100\n", &[]).unwrap();
    let rules = config.priority.rules();
    assert_eq!((rules.levels.initial, rules.levels.creating), (-100, 100));
}
