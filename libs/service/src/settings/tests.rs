//! Layers, and who is blamed.
//!
//! Invariant: each test writes a file of its own; the process environment is only read, and Cargo's variable
//! `CARGO_PKG_NAME` plays the part of a setting's.
//! Failure: the message that an operator would see is compared.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Parser;
use rstest::rstest;
use serde::Deserialize;

use super::arguments::{Refused, parse};
use super::*;

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Config {
    name: String,
    listen: PathBuf,
    runner: Runner,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Runner {
    workers: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "default".to_owned(),
            listen: "/default".into(),
            runner: Runner { workers: 8 },
        }
    }
}

#[derive(Debug, Parser)]
#[command(name = "program", version)]
struct Flags {
    #[arg(long, env = "CARGO_PKG_NAME")]
    name: Option<String>,
    #[arg(long)]
    listen: Option<PathBuf>,
    #[arg(long)]
    workers: Option<usize>,
}

#[derive(Debug, Parser)]
#[command(name = "program")]
struct Numbers {
    #[arg(long, value_name = "COUNT", env = "CARGO_PKG_NAME")]
    count: Option<u32>,
    #[arg(long)]
    lease: Option<bool>,
}

fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

fn read_text(text: &str) -> Result<Config, Error> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("program.toml");
    std::fs::write(&path, text).unwrap();
    load(Some(&path), "/nonexistent/program.toml")
}

fn layered(file: &str, line: &str) -> Config {
    let flags: Flags = parse(&words(line)).unwrap();
    let mut config = read_text(file).unwrap();
    set(&mut config.name, flags.name);
    set(&mut config.listen, flags.listen);
    set(&mut config.runner.workers, flags.workers);
    config
}

#[test]
fn each_layer_wins_over_the_ones_before_it() {
    let file = "name = 'file'\nlisten = '/file'\n";
    let config = layered(file, "program --listen /flag");
    assert_eq!(config.runner.workers, 8, "the default");
    assert_eq!(config.name, "service", "the environment");
    assert_eq!(config.listen, Path::new("/flag"));
    let config = layered(file, "program --name flag");
    assert_eq!(config.name, "flag");
    assert_eq!(config.listen, Path::new("/file"));
}

#[rstest]
#[case::unknown_key("[runner]\nworkes = 3\n", ", line 2, column 1: ", "workes")]
#[case::unknown_section("[lease]\n", ", line 1, column 2: ", "lease")]
#[case::wrong_type(
    "[runner]\nworkers = \"3\"\n",
    ", line 2, column 11: runner.workers: ",
    "string \"3\""
)]
#[case::not_ascii("name = 'ä'; listen = 1", ", line 1, column 11: ", "")]
#[case::syntax("name =\n", ", line 1, column 7: ", "string")]
#[case::open("name = '", ", line 1, column ", "")]
fn what_is_wrong_in_a_file_is_named_on_one_line(
    #[case] text: &str,
    #[case] place: &str,
    #[case] reason: &str,
) {
    let reported = read_text(text).unwrap_err().to_string();
    assert!(reported.starts_with("configuration file /"), "{reported}");
    assert!(
        reported.contains(&format!("program.toml{place}")),
        "{reported}"
    );
    assert!(
        reported.contains(reason) && !reported.contains('\n'),
        "{reported}"
    );
}

#[test]
fn a_file_that_was_named_must_exist() {
    let missing = Path::new("/nonexistent/program.toml");
    let error = load::<Config>(Some(missing), "/nonexistent/usual.toml").unwrap_err();
    assert_eq!(
        error.to_string(),
        "read configuration file /nonexistent/program.toml"
    );
}

#[test]
fn the_usual_file_need_not_exist() {
    let config: Config = load(None, "/nonexistent/usual.toml").unwrap();
    assert_eq!(config, Config::default());
}

#[test]
fn the_usual_file_is_read_and_must_be_readable() {
    let dir = tempfile::tempdir().unwrap();
    let usual = dir.path().join("usual.toml");
    std::fs::write(&usual, "name = 'usual'").unwrap();
    let config: Config = load(None, usual.to_str().unwrap()).unwrap();
    assert_eq!(config.name, "usual");
    let directory = load::<Config>(None, dir.path().to_str().unwrap());
    assert!(matches!(directory, Err(Error::Read { .. })));
}

#[rstest]
#[case::variable("program", "environment CARGO_PKG_NAME: \"service\": invalid digit")]
#[case::flag("program --count x", "flag --count: \"x\": invalid digit")]
#[case::equals("program --count=x", "flag --count: \"x\": invalid digit")]
#[case::word(
    "program --count 1 --lease maybe",
    "flag --lease: \"maybe\": one of true, false is allowed"
)]
fn a_value_is_refused_with_who_said_it(#[case] line: &str, #[case] start: &str) {
    match parse::<Numbers>(&words(line)) {
        Err(Refused::Value(reported)) => assert!(reported.starts_with(start), "{reported}"),
        other => panic!("{other:?}"),
    }
}

#[rstest]
#[case::unknown("program --nme x", "--nme")]
#[case::no_value("program --name", "--name")]
#[case::help("program --help", "Usage: program")]
fn the_rest_is_left_to_clap(#[case] line: &str, #[case] text: &str) {
    match parse::<Flags>(&words(line)) {
        Err(Refused::Other(e)) => assert!(e.to_string().contains(text), "{e}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn long_values_are_cut() {
    let reported = refusal("flag --name", &"x".repeat(1000), "too long");
    assert_eq!(reported.matches('x').count(), SHOWN);
}
