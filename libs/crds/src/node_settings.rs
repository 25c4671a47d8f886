//! What a node has made of the `NodeConfig` objects that match it: an annotation of its Node.
//!
//! Invariant: the text is bounded; it is as its agent wrote it, which may be long ago.
//! Failure: [`NodeSettingsReport::read`] takes text that is no such JSON, or too long, for none.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::text::printable;

/// Longest JSON, in bytes; also in the admission policy of agents.
pub const LIMIT: usize = 32_768;
/// Most objects that count on a node: those of the highest priority.
pub const MOST_OBJECTS: usize = 32;

/// Most settings, and longest text of each.
const MOST_SETTINGS: usize = 32;
const TEXT: usize = 300;

/// What a node has made of its objects.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSettingsReport {
    /// The objects that the node has taken into account, by name.
    pub observed: BTreeMap<String, Observed>,
    /// Settings of the daemon by their key in its configuration file.
    pub settings: BTreeMap<String, SettingReport>,
}

/// A state of an object.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Observed {
    /// Its UID.
    pub uid: String,
    /// Its generation.
    pub generation: i64,
}

/// A setting of a node.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct SettingReport {
    /// In force; empty if the daemon does not say.
    pub value: String,
    /// Who set that value; empty if the daemon does not say.
    pub source: String,
    /// Name of the object that gives the setting; empty if none does.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_config: String,
    /// Why the value of that object is refused; empty if it is not.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub refused: String,
    /// Where the node itself sets it, so that the object has no effect; empty if it does not.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub overridden_by: String,
}

impl NodeSettingsReport {
    /// What an annotation says.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let fits = text.len() <= LIMIT;
        fits.then(|| serde_json::from_str(text).ok()).flatten()
    }

    /// The text of the annotation.
    #[must_use]
    pub fn text(mut self) -> String {
        while self.observed.len() > MOST_OBJECTS {
            self.observed.pop_last();
        }
        while self.settings.len() > MOST_SETTINGS {
            self.settings.pop_last();
        }
        for one in self.settings.values_mut() {
            for text in [
                &mut one.value,
                &mut one.source,
                &mut one.refused,
                &mut one.overridden_by,
            ] {
                *text = printable(text, TEXT);
            }
        }
        serde_json::to_string(&self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_report_fits() {
        let long = "\"".repeat(1000);
        let name = |n: usize| format!("{n:0>253}");
        let observed = |n: usize| {
            let uid = "0".repeat(36);
            (
                name(n),
                Observed {
                    uid,
                    generation: i64::MAX,
                },
            )
        };
        let setting = |n: usize| {
            let report = SettingReport {
                value: "512Mi".to_owned(),
                source: format!("NodeConfig {}", name(n)),
                node_config: name(n),
                refused: long.clone(),
                overridden_by: String::new(),
            };
            (format!("images.max_virtual_size_{n}"), report)
        };
        let report = NodeSettingsReport {
            observed: (0..2 * MOST_OBJECTS).map(observed).collect(),
            settings: (0..8).map(setting).collect(),
        };
        let text = report.text();
        assert!(text.len() <= LIMIT, "{}", text.len());
        let read = NodeSettingsReport::read(&text).unwrap();
        assert_eq!(read.observed.len(), MOST_OBJECTS);
        assert_eq!(read.settings.len(), 8);
        assert_eq!(NodeSettingsReport::read(&"x".repeat(LIMIT + 1)), None);
        assert_eq!(NodeSettingsReport::read("7"), None);
    }
}
