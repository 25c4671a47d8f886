//! Layers, messages, `config show` and the reference page.
//!
//! Invariant: each test writes a file of its own; the process environment is not read.
//! Failure: the message that an operator would see is compared.

use std::ffi::OsString;

use clap::{CommandFactory, Parser};
use rstest::rstest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::*;
use crate::telemetry::{Filter, Log, one_line};

/// Settings of a program for tests.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Config {
    /// A name.
    name: String,
    /// Directories.
    dirs: Vec<String>,
    /// A port that may be missing.
    port: Option<u16>,
    /// Passes.
    runner: Runner,
    /// Where metrics are served.
    metrics: Option<Metrics>,
    /// Peers.
    peer: Vec<Peer>,
    /// The log.
    log: Log,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Runner {
    /// How many
    /// workers.
    workers: usize,
    /// Timeout of a pass.
    pass_timeout: Timespan,
    /// A switch.
    enabled: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Metrics {
    /// An address.
    listen: std::net::SocketAddr,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Peer {
    /// Its name.
    name: String,
    /// Its weight.
    #[serde(default)]
    weight: u8,
}

impl Default for Runner {
    fn default() -> Self {
        Self {
            workers: 8,
            pass_timeout: Timespan::from_secs(90),
            enabled: true,
        }
    }
}

impl Settings for Config {
    const PROGRAM: &'static str = "program";
    const PREFIX: &'static str = "PROGRAM";
    const FILE: &'static str = "/nonexistent/program.toml";

    fn check(&self) -> Result<(), Problem> {
        match self.runner.workers {
            0 => Err("runner.workers must be at least 1".into()),
            _ => Ok(()),
        }
    }
}

#[derive(Debug, Parser)]
#[command(name = "program")]
struct Line {
    #[command(flatten)]
    settings: Flags<Config>,
    #[command(subcommand)]
    command: Option<Command>,
}

fn load_with(
    file: &str,
    flags: &[&str],
    variables: &[(&str, &str)],
) -> Result<Effective<Config>, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("program.toml");
    std::fs::write(&path, file).unwrap();
    let line = ["program", "--config", path.to_str().unwrap()];
    let line = Line::try_parse_from(line.iter().chain(flags)).unwrap();
    layered(&line.settings, pairs(variables)).map_err(|e| one_line(&e))
}

fn pairs(variables: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    let owned = |(name, value): &(&str, &str)| (OsString::from(name), OsString::from(value));
    variables.iter().map(owned).collect()
}

#[test]
fn the_command_line_is_consistent() {
    Line::command().debug_assert();
}

#[test]
fn a_later_layer_replaces_an_earlier_one() {
    let file = "name = 'file'\n[runner]\nworkers = 2\nenabled = false\n";
    let variables = [
        ("PROGRAM_NAME", "variable"),
        ("PROGRAM_RUNNER_WORKERS", "3"),
        ("PROGRAM_DIRS", "/a,/b"),
        ("PROGRAM_METRICS_LISTEN", "127.0.0.1:80"),
    ];
    let effective = load_with(file, &["--name", "flag", "--port", "7"], &variables).unwrap();
    let config = &effective.config;
    assert_eq!((config.name.as_str(), config.runner.workers), ("flag", 3));
    assert_eq!(config.runner.pass_timeout, Timespan::from_secs(90));
    assert_eq!((config.port, config.dirs.len()), (Some(7), 2));
    assert_eq!(config.metrics.as_ref().unwrap().listen.port(), 80);
    assert!(!config.runner.enabled);
    let source = |key: &str| effective.source(key).to_string();
    assert_eq!(source("name"), "flag --name");
    assert_eq!(
        source("runner.workers"),
        "environment PROGRAM_RUNNER_WORKERS"
    );
    assert_eq!(source("runner.pass_timeout"), "default");
    assert!(source("runner.enabled").starts_with("file /"));
}

#[rstest]
#[case::unknown_key("[runner]\nworkes = 3\n", ", line 2, column 1: ", "workes")]
#[case::unknown_section("[lease]\n", ", line 1, column 2: ", "lease")]
#[case::wrong_type(
    "[runner]\nworkers = \"3\"\n",
    ", line 2, column 11: runner.workers: ",
    "string \"3\""
)]
#[case::no_unit(
    "[runner]\npass_timeout = 5\n",
    ", line 2, column 16: runner.pass_timeout: ",
    "5 has no unit"
)]
#[case::not_ascii("name = 'ä'; listen = 1", ", line 1, column 11: ", "")]
#[case::syntax("name =\n", ", line 1, column 7: ", "string")]
#[case::open("name = '", ", line 1, column ", "")]
fn an_error_in_a_file_is_one_line_with_its_position(
    #[case] file: &str,
    #[case] position: &str,
    #[case] reason: &str,
) {
    let error = load_with(file, &[], &[]).unwrap_err();
    assert!(error.starts_with("configuration file /"), "{error}");
    assert!(
        error.contains(&format!("program.toml{position}")),
        "{error}"
    );
    assert!(error.contains(reason) && !error.contains('\n'), "{error}");
}

#[rstest]
#[case::variable(&[], &[("PROGRAM_RUNNER_WORKERS", "x")], "environment PROGRAM_RUNNER_WORKERS: \
    \"x\": invalid type")]
#[case::flag(&["--runner-workers", "-"], &[], "flag --runner-workers: \"-\": invalid type")]
#[case::negative(&["--runner-workers=-1"], &[], "flag --runner-workers: \"-1\": ")]
#[case::boolean(&["--runner-enabled", "maybe"], &[], "flag --runner-enabled: \"maybe\": invalid \
    type")]
#[case::duration(&["--runner-pass-timeout", "5"], &[], "flag --runner-pass-timeout: \"5\": a \
    duration such as")]
#[case::filter(&[], &[("PROGRAM_LOG_LEVEL", "a=b=c")], "environment PROGRAM_LOG_LEVEL: \"a=b=c\": \
    no log filter")]
#[case::check(&["--runner-workers", "0"], &[], "runner.workers must be at least 1")]
#[case::unknown(&[], &[("PROGRAM_NAM", "x")], "environment PROGRAM_NAM: no setting has this \
    variable")]
// A bad value is refused even when a later layer replaces it.
#[case::replaced(&["--name", "x", "--port", "1"], &[("PROGRAM_PORT", "99999")], "environment \
    PROGRAM_PORT: \"99999\": ")]
fn an_unusable_value_is_refused_with_its_source(
    #[case] flags: &[&str],
    #[case] variables: &[(&str, &str)],
    #[case] start: &str,
) {
    let error = load_with("", flags, variables).unwrap_err();
    assert!(error.starts_with(start), "{error}");
}

#[test]
fn variables_of_kubernetes_services_are_ignored() {
    let variables = [
        ("PROGRAM_SERVICE_HOST", "10.0.0.1"),
        ("PROGRAM_SERVICE_PORT_HTTP", "80"),
        ("PROGRAM_METRICS_PORT", "tcp://10.0.0.1:80"),
        ("PROGRAM_PORT_80_TCP_ADDR", "10.0.0.1"),
        ("PROGRAMS", "x"),
    ];
    load_with("", &[], &variables).unwrap();
}

#[test]
fn a_named_file_must_exist_and_the_usual_file_need_not() {
    let line = Line::try_parse_from(["program", "--config", "/nonexistent/x.toml"]).unwrap();
    let error = layered(&line.settings, []).unwrap_err();
    assert_eq!(
        error.to_string(),
        "read configuration file /nonexistent/x.toml"
    );
    let line = Line::try_parse_from(["program"]).unwrap();
    assert_eq!(
        layered(&line.settings, []).unwrap().config,
        Config::default()
    );
}

#[test]
fn flags_may_follow_the_subcommand() {
    let line = Line::try_parse_from(["program", "config", "show", "--name", "x"]).unwrap();
    assert_eq!(line.command, Some(Command::Config(ConfigCommand::Show)));
    assert_eq!(layered(&line.settings, []).unwrap().config.name, "x");
}

#[test]
fn the_shown_settings_are_a_file_with_the_same_meaning() {
    let file = "name = 'a\"b'\n[[peer]]\nname = 'p'\nweight = 2\n[log]\nlevel = 'debug'\n";
    let first = load_with(file, &["--dirs", "/a", "--dirs", "/b"], &[]).unwrap();
    let text = show(&first);
    assert!(
        text.contains("dirs = [\"/a\", \"/b\"]  # flag --dirs\n"),
        "{text}"
    );
    assert!(
        text.contains("pass_timeout = \"1m30s\"  # default\n"),
        "{text}"
    );
    let second = load_with(&text, &[], &[]).unwrap();
    assert_eq!(first.config, second.config);
    assert_eq!(second.config.log.level, "debug".parse::<Filter>().unwrap());
}

#[test]
fn the_page_describes_every_setting() {
    let page = page::<Config>();
    for line in [
        "| `name` | `\"\"` | A name. |",
        "| `port` | not set | A port that may be missing. |",
        "## `[runner]`\n\nPasses.\n",
        "| `workers` | `8` | How many workers. |",
        "## `[[peer]]`\n\nPeers.\n",
        "| `name` | required | Its name. |",
        "| `weight` | `0` | Its weight. |",
    ] {
        assert!(page.contains(line), "{line} is not in:\n{page}");
    }
}

#[rstest]
#[case("500ms", 500)]
#[case("30s", 30_000)]
#[case("1h30m", 5_400_000)]
#[case("0s", 0)]
fn a_timespan_parses_back_from_its_text(#[case] text: &str, #[case] milliseconds: u64) {
    let timespan: Timespan = text.parse().unwrap();
    assert_eq!(timespan, Timespan::from_millis(milliseconds));
    assert_eq!(timespan.to_string(), text);
}

#[rstest]
fn a_timespan_needs_a_unit_and_is_not_negative(
    #[values("", "5", "-1s", "x", "1 fortnight")] text: &str,
) {
    assert!(
        text.parse::<Timespan>()
            .unwrap_err()
            .contains("is expected")
    );
}

#[test]
fn a_long_value_is_shortened_in_messages() {
    let text = refusal("flag --name", &"x".repeat(1000), "too long");
    assert_eq!(text.matches('x').count(), SHOWN);
}
