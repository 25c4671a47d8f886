//! What a configuration means, and which ones are refused.
//!
//! Invariant: files lie in a directory of the test's own.
//! Failure: the message that a person would read is compared.

use service::telemetry::{Format, one_line};

use super::*;

fn load_text(text: &str, overrides: Overrides) -> Result<Config, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.toml");
    std::fs::write(&path, text).unwrap();
    load(Some(&path), overrides).map_err(|e| one_line(&e))
}

fn refusal(text: &str) -> String {
    load_text(text, Overrides::default()).unwrap_err()
}

#[test]
fn a_node_name_is_enough() {
    let config = load_text("node = \"n1\"", Overrides::default()).unwrap();
    let usual = Config {
        node: "n1".to_owned(),
        ..Config::default()
    };
    assert_eq!(config, usual);
}

#[test]
fn flags_win_over_the_file() {
    let overrides = Overrides {
        node: Some("n2".to_owned()),
        proxy_endpoint: Some(String::new()),
        log_level: Some("debug".parse().unwrap()),
        ..Overrides::default()
    };
    let text = "node = \"n1\"\nnode_endpoint = \"/a.sock\"\n[log]\nformat = \"json\"";
    let config = load_text(text, overrides).unwrap();
    assert_eq!(
        (config.node.as_str(), config.proxy_endpoint.as_str()),
        ("n2", "")
    );
    assert_eq!(config.node_endpoint, "/a.sock");
    assert_eq!(
        (&*config.log.level, config.log.format),
        ("debug", Format::Json)
    );
}

#[test]
fn unknown_keys_are_refused_with_their_place() {
    let text = refusal("node = \"n1\"\n[limits]\nprogres_s = 1");
    assert!(
        text.contains("progres_s") && text.contains("line 3"),
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
fn a_file_that_was_named_must_be_there() {
    let missing = load(
        Some(Path::new("/nonexistent/agent.toml")),
        Overrides::default(),
    );
    assert!(matches!(missing, Err(Error::File(_))));
}

#[test]
fn times_of_orphans_that_contradict_each_other_are_refused() {
    let limits = |text: &str| refusal(&format!("node = \"n1\"\n[limits]\n{text}"));
    assert!(limits("orphan_look_s = 0").contains("limits.orphan_look_s"));
    let early = limits("orphan_confirm_s = 60\norphan_remove_after_s = 59");
    assert!(
        early.contains("at least limits.orphan_confirm_s"),
        "{early}"
    );
    let text = "node = \"n1\"\n[limits]\norphan_confirm_s = 60\norphan_remove_after_s = 60";
    load_text(text, Overrides::default()).unwrap();
}
