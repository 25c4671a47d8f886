//! Settings of the cluster on the wire.
//!
//! Invariant: the results are in the order of the request.
//! Failure: [`Status`] for a request that says one thing twice.

use std::collections::{BTreeMap, BTreeSet};

use nodeapi::v1;
use nodeapi::v1::node_setting_result::Outcome as Code;
use service::telemetry;
use tonic::Status;

use crate::node_settings::{Answer, Error, Given, InForce, Kept, Outcome, Request};

/// Longest key and longest reason that an answer repeats, in bytes.
const LONGEST_KEY: usize = 64;
const LONGEST_REASON: usize = 512;
/// Most objects that cannot be read, and longest name of one, in bytes.
const MOST_NAMES: usize = 64;
const LONGEST_NAME: usize = 253;

/// The settings of a request.
pub(in crate::node) fn node_settings(
    request: v1::SetNodeSettingsRequest,
) -> Result<Request, Status> {
    let mut settings = BTreeMap::new();
    for v1::NodeSetting {
        key,
        value,
        node_config: from,
    } in request.settings
    {
        if key.len() > LONGEST_KEY {
            let reason = format!("settings.key: longer than {LONGEST_KEY} bytes");
            return Err(Status::invalid_argument(reason));
        }
        if settings.insert(key, Given { value, from }).is_some() {
            let reason = "settings.key: each setting is given once";
            return Err(Status::invalid_argument(reason));
        }
    }
    let names = request.keep_of;
    if names.len() > MOST_NAMES || names.iter().any(|name| name.len() > LONGEST_NAME) {
        let reason = format!("keep_of: at most {MOST_NAMES} names of at most {LONGEST_NAME} bytes");
        return Err(Status::invalid_argument(reason));
    }
    let names: BTreeSet<_> = names.into_iter().collect();
    let kept = if !request.keep_others {
        Kept::None
    } else if names.is_empty() {
        // An earlier agent does not say of which objects.
        Kept::All
    } else {
        Kept::Of(names)
    };
    Ok(Request { settings, kept })
}

/// What became of the settings with these keys.
pub(in crate::node) fn settings_answer(
    keys: &[String],
    mut answer: Answer,
) -> v1::SetNodeSettingsResponse {
    let results = keys.iter().map(|key| {
        let outcome = answer.outcomes.remove(key);
        let code = match &outcome {
            None => Code::Unknown,
            Some(Outcome::InUse) => Code::InUse,
            Some(Outcome::Overridden(_)) => Code::Overridden,
            Some(Outcome::Refused(_)) => Code::Refused,
        };
        let message = match outcome {
            None | Some(Outcome::InUse) => String::new(),
            Some(Outcome::Overridden(text) | Outcome::Refused(text)) => bounded(&text),
        };
        v1::NodeSettingResult {
            key: key.clone(),
            outcome: code.into(),
            message,
        }
    });
    let results = results.collect();
    let in_force = |InForce { key, value, source }| v1::NodeSettingInForce {
        key: key.name().to_owned(),
        value,
        source: bounded(&source),
    };
    v1::SetNodeSettingsResponse {
        results,
        in_force: answer.in_force.into_iter().map(in_force).collect(),
    }
}

/// Why settings could not be used.
pub(in crate::node) fn settings_error(error: &Error) -> Status {
    let text = telemetry::one_line(error);
    match error {
        Error::TooMany => Status::invalid_argument(text),
        Error::Slow | Error::Aborted(_) => Status::unavailable(text),
        Error::Record(_) => Status::internal(text),
    }
}

fn bounded(text: &str) -> String {
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    let end = text.floor_char_boundary(LONGEST_REASON);
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(key: &str) -> v1::NodeSetting {
        v1::NodeSetting {
            key: key.to_owned(),
            value: "1".to_owned(),
            node_config: "a".to_owned(),
        }
    }

    #[test]
    fn a_setting_that_is_given_twice_or_has_a_long_key_is_refused() {
        let request = |settings| {
            node_settings(v1::SetNodeSettingsRequest {
                settings,
                ..v1::SetNodeSettingsRequest::default()
            })
        };
        assert!(request(vec![setting("a"), setting("b")]).is_ok());
        for settings in [
            vec![setting("a"), setting("a")],
            vec![setting(&"k".repeat(65))],
        ] {
            let refused = request(settings).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        }
    }

    #[test]
    fn what_stays_is_that_of_the_named_objects_or_all_for_an_earlier_agent() {
        let kept = |keep_others, names: &[String]| {
            let request = v1::SetNodeSettingsRequest {
                keep_others,
                keep_of: names.to_vec(),
                ..v1::SetNodeSettingsRequest::default()
            };
            node_settings(request).map(|request| request.kept)
        };
        let name = ["a".to_owned()];
        assert_eq!(kept(false, &[]).unwrap(), Kept::None);
        assert_eq!(kept(true, &[]).unwrap(), Kept::All);
        assert_eq!(kept(true, &name).unwrap(), Kept::Of(name.clone().into()));
        assert!(kept(true, &vec![name[0].clone(); 65]).is_err());
        assert!(kept(true, &["x".repeat(254)]).is_err());
    }

    #[test]
    fn results_are_in_the_order_of_the_request_and_bounded() {
        let long = "é\n".repeat(600);
        let answer = Answer {
            outcomes: [
                ("a".to_owned(), Outcome::Refused(long)),
                ("b".to_owned(), Outcome::InUse),
            ]
            .into(),
            in_force: Vec::new(),
        };
        let keys = ["b".to_owned(), "a".to_owned()];
        let answer = settings_answer(&keys, answer);
        let [b, a] = &answer.results[..] else {
            panic!("{answer:?}");
        };
        assert_eq!((b.key.as_str(), b.outcome()), ("b", Code::InUse));
        assert_eq!((a.key.as_str(), a.outcome()), ("a", Code::Refused));
        assert_eq!(a.message, "é".repeat(256));
    }
}
