//! What a configuration means, and which ones are refused.
//!
//! Invariant: files lie in a directory of the test's own.
//! Failure: the message that a person would read is compared.

use std::ffi::OsString;
use std::path::Path;

use clap::Parser;
use service::settings::{Flags, check_page, layered};
use service::telemetry::{Format, one_line};

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    settings: Flags<Config>,
}

fn load_with(text: &str, flags: &[&str], variables: &[(&str, &str)]) -> Result<Config, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.toml");
    std::fs::write(&path, text).unwrap();
    let line = ["vmlet-agent", "--config", path.to_str().unwrap()];
    let line = Line::try_parse_from(line.iter().chain(flags)).unwrap();
    let variables = variables
        .iter()
        .map(|(k, v)| (OsString::from(k), OsString::from(v)));
    let effective = layered(&line.settings, variables).map_err(|e| one_line(&e))?;
    Ok(effective.config)
}

fn load_text(text: &str) -> Result<Config, String> {
    load_with(text, &[], &[])
}

fn refusal(text: &str) -> String {
    load_text(text).unwrap_err()
}

#[test]
fn a_node_name_is_enough() {
    let config = load_text("node = \"n1\"").unwrap();
    let usual = Config {
        node: "n1".to_owned(),
        ..Config::default()
    };
    assert_eq!(config, usual);
}

#[test]
fn flags_replace_variables_and_variables_replace_the_file() {
    let text = "node = \"n1\"\nnode_endpoint = \"/a.sock\"\n[log]\nformat = \"json\"";
    let flags = [
        "--node",
        "n2",
        "--proxy-endpoint",
        "",
        "--limits-progress",
        "7s",
    ];
    let variables = [
        ("VMLET_AGENT_NODE", "n3"),
        ("VMLET_AGENT_LOG_LEVEL", "debug"),
        // As Kubernetes sets for a Service of the namespace.
        ("VMLET_AGENT_SERVICE_HOST", "10.0.0.1"),
        ("VMLET_AGENT_PORT_80_TCP_PORT", "80"),
    ];
    let config = load_with(text, &flags, &variables).unwrap();
    assert_eq!(
        (config.node.as_str(), config.proxy_endpoint.as_str()),
        ("n2", "")
    );
    assert_eq!(config.node_endpoint, "/a.sock");
    assert_eq!(
        (&*config.log.level, config.log.format),
        ("debug", Format::Json)
    );
    assert_eq!(config.limits.progress, Timespan::from_secs(7));
}

#[test]
fn the_reference_page_describes_these_settings() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/agent-configuration.md");
    check_page::<Config>(&page, "").unwrap();
}

#[test]
fn unknown_keys_are_refused_with_their_place() {
    let text = refusal("node = \"n1\"\n[limits]\nprogres = \"1s\"");
    assert!(
        text.contains("progres") && text.contains("line 3"),
        "{text}"
    );
}

#[test]
fn a_missing_or_impossible_node_name_is_refused() {
    for text in ["", "node = \"\"", "node = \"A/b\"", "node = \"-\""] {
        assert!(refusal(text).starts_with("node must be"), "{text}");
    }
    let long = format!("node = \"{}\"", "n".repeat(243));
    assert!(refusal(&long).contains("too long"));
}

#[test]
fn an_endpoint_must_be_a_socket() {
    let text = refusal("node = \"n1\"\nnode_endpoint = \"localhost:1\"");
    assert!(
        text.starts_with("node_endpoint: \"localhost:1\" is no node endpoint"),
        "{text}"
    );
}

#[test]
fn times_of_orphans_that_contradict_each_other_are_refused() {
    let limits = |text: &str| refusal(&format!("node = \"n1\"\n[limits]\n{text}"));
    assert!(limits("orphan_interval = \"0s\"").contains("limits.orphan_interval"));
    let early = limits("orphan_confirm = \"1m\"\norphan_remove_after = \"59s\"");
    assert!(early.contains("at least limits.orphan_confirm"), "{early}");
    let text = "node = \"n1\"\n[limits]\norphan_confirm = \"1m\"\norphan_remove_after = \"1m\"";
    load_text(text).unwrap();
}
