//! Settings from files and what is refused.
//!
//! Invariant: the documented example loads; each contradiction has its own sentence.
//! Failure: the test names the example.

use std::ffi::OsString;
use std::path::Path;

use clap::Parser;
use rstest::rstest;
use service::settings::{Flags, check_page, layered};
use service::telemetry;

use super::*;

const EXAMPLE: &str = r#"
listen = "/run/vmlet/criproxy.sock"
status_listen = "/run/vmlet/proxy/status.sock"
state_dir = "/var/lib/vmlet/criproxy"
boot_id_file = "/proc/sys/kernel/random/boot_id"
[primary]
name = "containerd"
socket = "/run/containerd/containerd.sock"
[[secondary]]
name = "vmlet"
socket = "/run/vmlet/vmlet.sock"
handlers = ["vmlet", "vmlet-process"]
image_prefixes = ["vmlet.dev/", "virtlet.cloud/"]
id_suffix = "766d6c74"
[metrics]
listen = "127.0.0.1:9621"
[log]
level = "info"
format = "text"
"#;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    settings: Flags<Config>,
}

fn read(text: &str) -> Result<Config, String> {
    read_with(text, &[], &[])
}

fn read_with(text: &str, flags: &[&str], variables: &[(&str, &str)]) -> Result<Config, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("criproxy.toml");
    std::fs::write(&path, text).unwrap();
    let line = ["vmlet-criproxy", "--config", path.to_str().unwrap()];
    let line = Line::try_parse_from(line.iter().chain(flags)).unwrap();
    let variables = variables
        .iter()
        .map(|(k, v)| (OsString::from(k), OsString::from(v)));
    let effective = layered(&line.settings, variables).map_err(|e| telemetry::one_line(&e))?;
    Ok(effective.config)
}

#[test]
fn the_reference_page_describes_these_settings() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/criproxy-configuration.md");
    let example = format!("\n## Example\n\n```toml{EXAMPLE}```\n");
    check_page::<Config>(&page, &example).unwrap();
}

/// The file that the installation page has an operator copy.
#[test]
fn the_installed_settings_are_those_of_the_example() {
    let installed = read(include_str!("../../../deploy/systemd/criproxy.toml")).unwrap();
    let example = read(EXAMPLE).unwrap();
    assert_eq!(installed.secondary, example.secondary);
    assert_eq!(installed.primary, example.primary);
    assert_eq!(installed.listen, example.listen);
}

#[test]
fn the_documented_example_loads() {
    let config = read(EXAMPLE).unwrap();
    assert_eq!(config.secondary[0].target_runtimes, [""; 0]);
    assert_eq!(config.limits, Limits::default());
}

#[test]
fn a_short_file_gets_defaults() {
    let config = read("[primary]\nname = 'a'\nsocket = '/a'").unwrap();
    assert_eq!(config.listen, Path::new("/run/vmlet/criproxy.sock"));
    assert!(config.metrics.is_none());
}

#[test]
fn flags_and_variables_replace_the_file() {
    let flags = ["--listen", "/tmp/x.sock"];
    let variables = [
        ("VMLET_CRIPROXY_METRICS_LISTEN", "127.0.0.1:1"),
        ("VMLET_CRIPROXY_LISTEN", "/tmp/y.sock"),
    ];
    let config = read_with(EXAMPLE, &flags, &variables).unwrap();
    assert_eq!(config.listen, Path::new("/tmp/x.sock"));
    assert_eq!(config.metrics.unwrap().listen.port(), 1);
}

#[rstest]
#[case::unknown_key(
    "level = \"info\"",
    "level = \"info\"\ncolour = 1",
    "unknown field `colour`"
)]
#[case::name_twice(
    "name = \"vmlet\"",
    "name = \"containerd\"",
    "name \"containerd\" is given to both"
)]
#[case::name_with_slash("name = \"vmlet\"", "name = \"../x\"", "must be 1 to 63")]
#[case::handler_empty(
    "handlers = [\"vmlet\", \"vmlet-process\"]",
    "handlers = [\"\"]",
    "every pod"
)]
#[case::handler_twice(
    "handlers = [\"vmlet\", \"vmlet-process\"]",
    "handlers = [\"a\", \"a\"]",
    "handler \"a\" is given"
)]
#[case::target_of_primary(
    "id_suffix",
    "target_runtimes = [\"containerd\"]\nid_suffix",
    "annotation value \"containerd\""
)]
#[case::own_socket(
    "/run/vmlet/vmlet.sock",
    "/run/vmlet/criproxy.sock",
    "the proxy itself"
)]
#[case::crio("/run/vmlet/criproxy.sock", "/x/run/crio/crio.sock", "CRI-O")]
#[case::relative("\"/run/vmlet/vmlet.sock\"", "\"vmlet.sock\"", "absolute")]
#[case::suffix("766d6c74", "XYZ", "hex digits")]
#[case::public_metrics("127.0.0.1:9621", "0.0.0.0:9621", "loopback")]
#[case::level("level = \"info\"", "level = \"a=b=c\"", "no log filter")]
fn a_contradiction_is_refused_with_a_sentence(
    #[case] from: &str,
    #[case] to: &str,
    #[case] sentence: &str,
) {
    let text = EXAMPLE.replace(from, to);
    assert_ne!(text, EXAMPLE);
    let error = read(&text).unwrap_err();
    assert!(error.contains(sentence), "{error}");
}
