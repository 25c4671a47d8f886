//! The facts in the daemon's verbose status.
//!
//! Invariant: a fact that is absent, or of an unexpected form, is unknown; it never hides the
//! others.
//! Failure: none.

use serde_json::Value;

/// What the daemon reports about itself and its surroundings.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Info {
    /// "kvm" or "tcg".
    pub(super) accelerator: Option<String>,
    pub(super) accelerator_reason: String,
    pub(super) libvirt: Part,
    /// How the daemon reaches libvirt.
    pub(super) libvirt_uri: Option<String>,
    pub(super) qemu: Part,
    pub(super) network: Option<Network>,
    pub(super) tapmanager: Part,
    pub(super) cni_config_dir: Option<String>,
    pub(super) cni_bin_dirs: Vec<String>,
    /// The emulator that libvirt executes.
    pub(super) wrapper: Option<String>,
    /// What the daemon knows of its node, as it is; `Null` where it does not say.
    pub(super) node: Value,
}

/// A program that the daemon works with.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) enum Part {
    #[default]
    Unknown,
    /// Works; the text is its version, if that is known.
    Works(String),
    Broken(String),
}

/// Whether pods can be given a network.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Network {
    pub(super) ready: bool,
    pub(super) message: String,
    /// Name of the CNI network, its file and its plugins, as far as they are known.
    pub(super) made_by: String,
}

impl Info {
    pub(super) fn parse(text: &str) -> Self {
        let all: Value = serde_json::from_str(text).unwrap_or_default();
        let config = &all["network"]["config"];
        Self {
            accelerator: text_of(&all["accelerator"], &["choice"]),
            accelerator_reason: text_of(&all["accelerator"], &["reason"]).unwrap_or_default(),
            libvirt: part(&all["libvirt"]),
            libvirt_uri: text_of(&all["config"], &["libvirtUri"]),
            qemu: part(&all["qemu"]),
            network: network(&all["network"]),
            tapmanager: part(&all["tapmanager"]),
            cni_config_dir: text_of(config, &["confDir", "configDir"]),
            cni_bin_dirs: texts_of(config, &["binDirs", "binDir"]),
            wrapper: text_of(&all["config"], &["wrapper"]),
            node: all["node"].clone(),
        }
    }
}

fn network(value: &Value) -> Option<Network> {
    let ready = value["ready"].as_bool()?;
    let plugins = texts_of(value, &["plugins"]).join(", ");
    let parts = [
        text_of(value, &["network"]).unwrap_or_default(),
        text_of(value, &["config_file", "configFile", "config"]).unwrap_or_default(),
        plugins,
    ];
    let known: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    let message = text_of(value, &["message"]).unwrap_or_default();
    Some(Network {
        ready,
        message,
        made_by: known.join("; "),
    })
}

/// A part is a version, or an object with `version` or `error`, and perhaps `ready` or `reachable`.
fn part(value: &Value) -> Part {
    match value {
        Value::String(version) if !version.is_empty() => Part::Works(version.clone()),
        Value::Bool(true) => Part::Works(String::new()),
        Value::Bool(false) => Part::Broken("not reachable".to_owned()),
        Value::Object(fields) => {
            let error = text_of(value, &["error"]);
            let message = || text_of(value, &["message"]).unwrap_or_default();
            let version = text_of(value, &["version"]);
            let ready = fields.get("ready").or_else(|| fields.get("reachable"));
            match (error, ready, version) {
                (Some(error), ..) => Part::Broken(error),
                (None, Some(Value::Bool(false)), _) => Part::Broken(message()),
                (None, _, Some(version)) => Part::Works(version),
                (None, Some(Value::Bool(true)), None) => Part::Works(String::new()),
                _ => Part::Unknown,
            }
        }
        _ => Part::Unknown,
    }
}

/// The first of the fields that is a text with something in it.
fn text_of(value: &Value, fields: &[&str]) -> Option<String> {
    let texts = fields.iter().filter_map(|field| value.get(field)?.as_str());
    texts.map(str::to_owned).find(|text| !text.is_empty())
}

fn texts_of(value: &Value, fields: &[&str]) -> Vec<String> {
    let found = fields.iter().find_map(|field| value.get(field));
    match found {
        Some(Value::String(text)) => text.split(':').map(str::to_owned).collect(),
        Some(Value::Array(list)) => list
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_facts_are_read() {
        let info = Info::parse(
            r#"{
              "accelerator": {"choice": "tcg", "reason": "no device"},
              "libvirt": {"version": "9.0.0", "error": null},
              "qemu": "7.2.9",
              "network": {"ready": false, "message": "no conflist", "network": "pods",
                          "plugins": ["bridge", "portmap"],
                          "config": {"confDir": "/etc/cni/net.d", "binDirs": ["/a", "/b"]}},
              "tapmanager": {"reachable": false, "error": "connection refused"},
              "config": {"wrapper": "/w"},
              "node": {"kernel": {"landlockAbi": 6}}
            }"#,
        );
        let expected = Info {
            accelerator: Some("tcg".into()),
            accelerator_reason: "no device".into(),
            libvirt: Part::Works("9.0.0".into()),
            libvirt_uri: None,
            qemu: Part::Works("7.2.9".into()),
            network: Some(Network {
                ready: false,
                message: "no conflist".into(),
                made_by: "pods; bridge, portmap".into(),
            }),
            tapmanager: Part::Broken("connection refused".into()),
            cni_config_dir: Some("/etc/cni/net.d".into()),
            cni_bin_dirs: vec!["/a".into(), "/b".into()],
            wrapper: Some("/w".into()),
            node: serde_json::json!({"kernel": {"landlockAbi": 6}}),
        };
        assert_eq!(info, expected);
    }

    #[test]
    fn facts_of_an_unexpected_form_are_unknown() {
        for text in [
            "",
            "[]",
            "{}",
            r#"{"libvirt": 7, "accelerator": [], "network": "up"}"#,
        ] {
            assert_eq!(Info::parse(text), Info::default(), "{text}");
        }
    }

    #[test]
    fn readiness_is_read_in_several_forms() {
        for (text, expected) in [
            ("true", Part::Works(String::new())),
            ("false", Part::Broken("not reachable".into())),
            (r#"{"ready": true}"#, Part::Works(String::new())),
            (r#"{"reachable": true}"#, Part::Works(String::new())),
            (r#""""#, Part::Unknown),
            (
                r#"{"ready": false, "message": "m"}"#,
                Part::Broken("m".into()),
            ),
            (
                r#"{"version": "1", "error": "e"}"#,
                Part::Broken("e".into()),
            ),
        ] {
            assert_eq!(
                part(&serde_json::from_str(text).unwrap()),
                expected,
                "{text}"
            );
        }
    }
}
