//! What the Node says of its settings.
//!
//! Invariant: pure; a node that no object matches says nothing.
//! Failure: a setting that the daemon does not mention is reported as refused.

use std::collections::BTreeMap;

use crds::node_settings::{NodeSettingsReport, SettingReport};
use nodeapi::v1::SetNodeSettingsResponse;
use nodeapi::v1::node_setting_result::Outcome;

use super::merge::Merged;

/// What a daemon is said to have done with a setting that it does not mention.
const NO_ANSWER: &str = "the daemon of this node does not say what it does with this setting";

/// After the daemon's answer.
pub(super) fn from_answer(
    merged: &Merged,
    answer: SetNodeSettingsResponse,
) -> Option<NodeSettingsReport> {
    let mut report = refused(merged, NO_ANSWER)?;
    for result in answer.results {
        let outcome = result.outcome();
        let Some(setting) = report.settings.get_mut(&result.key) else {
            continue;
        };
        setting.refused.clear();
        match outcome {
            Outcome::InUse => {}
            Outcome::Overridden => setting.overridden_by = result.message,
            Outcome::Refused => setting.refused = result.message,
            Outcome::Unknown => NO_ANSWER.clone_into(&mut setting.refused),
        }
    }
    for in_force in answer.in_force {
        let setting = report.settings.entry(in_force.key).or_default();
        setting.value = in_force.value;
        setting.source = in_force.source;
    }
    Some(report)
}

/// When no setting is used, for this reason.
pub(super) fn refused(merged: &Merged, reason: &str) -> Option<NodeSettingsReport> {
    if merged.observed.is_empty() {
        return None;
    }
    let setting = |(key, setting): (&&str, &super::merge::Setting)| {
        let report = SettingReport {
            node_config: setting.from.clone(),
            refused: reason.to_owned(),
            ..SettingReport::default()
        };
        ((*key).to_owned(), report)
    };
    let settings: BTreeMap<_, _> = merged.settings.iter().map(setting).collect();
    Some(NodeSettingsReport {
        observed: merged.observed.clone(),
        settings,
    })
}

#[cfg(test)]
mod tests {
    use crds::node_settings::Observed;
    use nodeapi::v1::{NodeSettingInForce, NodeSettingResult};

    use super::super::merge::Setting;
    use super::*;

    fn merged(keys: &[&'static str]) -> Merged {
        let setting = |key: &&'static str| {
            let value = "1".to_owned();
            let from = "a".to_owned();
            (*key, Setting { value, from })
        };
        Merged {
            observed: [("a".to_owned(), Observed::default())].into(),
            settings: keys.iter().map(setting).collect(),
            ..Merged::default()
        }
    }

    fn result(key: &str, outcome: Outcome, message: &str) -> NodeSettingResult {
        NodeSettingResult {
            key: key.to_owned(),
            outcome: outcome.into(),
            message: message.to_owned(),
        }
    }

    #[test]
    fn every_setting_of_an_object_has_its_outcome() {
        let merged = merged(&["a", "b", "c", "d"]);
        let in_force = NodeSettingInForce {
            key: "b".to_owned(),
            value: "7".to_owned(),
            source: "file x".to_owned(),
        };
        let answer = SetNodeSettingsResponse {
            results: vec![
                result("a", Outcome::InUse, ""),
                result("b", Outcome::Overridden, "file x"),
                result("c", Outcome::Refused, "bad"),
                result("never", Outcome::InUse, ""),
            ],
            in_force: vec![in_force],
        };
        let report = from_answer(&merged, answer).unwrap();
        let said = |key: &str| {
            let setting = &report.settings[key];
            assert_eq!(setting.node_config, "a");
            (setting.refused.as_str(), setting.overridden_by.as_str())
        };
        assert_eq!(said("a"), ("", ""));
        assert_eq!(said("b"), ("", "file x"));
        assert_eq!(said("c"), ("bad", ""));
        assert_eq!(said("d"), (NO_ANSWER, ""));
        assert_eq!(report.settings["b"].value, "7");
        assert!(!report.settings.contains_key("never"));
    }

    #[test]
    fn a_node_without_objects_says_nothing() {
        let nothing = Merged::default();
        assert_eq!(refused(&nothing, "x"), None);
        let answer = SetNodeSettingsResponse::default();
        assert_eq!(from_answer(&nothing, answer), None);
    }
}
