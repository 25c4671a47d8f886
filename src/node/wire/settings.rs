//! Settings of the cluster on the wire.
//!
//! Invariant: the results are in the order of the request.
//! Failure: [`Status`] for a request that says one thing twice.

use std::collections::BTreeMap;

use nodeapi::v1;
use nodeapi::v1::node_setting_result::Outcome as Code;
use service::telemetry;
use tonic::Status;

use crate::node_settings::{Answer, Error, Given, InForce, Outcome, Request};

/// Longest key and longest reason that an answer repeats, in bytes.
const LONGEST_KEY: usize = 64;
const LONGEST_REASON: usize = 512;

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
    Ok(Request {
        settings,
        keep_others: request.keep_others,
    })
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
            let keep_others = false;
            node_settings(v1::SetNodeSettingsRequest {
                settings,
                keep_others,
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
