//! Findings of components against the conditions.
//!
//! Invariant: one entry per type decides status and reason; messages keep the text of each
//! component, in visiting order.
//! Failure: a message that grows beyond the limit is cut.

use std::collections::BTreeMap;

use crds::conditions::Status;

use super::component::{Component, ComponentCondition, ComponentState, Conditions};
use super::{Kind, Rules};

/// Longest message, in bytes.
const LONGEST: usize = 1024;

/// What was collected for one type.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) status: Status,
    pub(super) reason: String,
    pub(super) messages: Vec<String>,
}

impl Entry {
    pub(super) fn message(&self) -> String {
        let mut text = self.messages.join("; ");
        if text.len() > LONGEST {
            let mut end = LONGEST - '…'.len_utf8();
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
            text.push('…');
        }
        text
    }
}

/// Everything that was collected in a pass.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Findings, by condition type.
    pub(super) bad: BTreeMap<Kind, Entry>,
    /// Neither good nor bad.
    pub(super) unknown: BTreeMap<Kind, Entry>,
    /// Some component itself reports that it must not be replaced now.
    pub(super) not_upgradeable: bool,
    pub(super) errors: Vec<String>,
}

/// Who wins when several components have something against a type.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Write {
    Set,
    IfUnset,
}

impl Findings {
    /// Visits the components in their order.
    pub(super) fn collect(components: &[Component], rules: &Rules) -> Self {
        let mut findings = Self::default();
        for component in components {
            match &component.state {
                ComponentState::Failed(error) => {
                    findings.errors.push(format!("{}: {error}", component.name));
                    if !rules.evaluate_all {
                        break;
                    }
                    for kind in Kind::COLLECTED {
                        let words = format!("{} cannot be looked at: {error}", component.name);
                        findings.doubt(kind, &component.name, words);
                    }
                }
                _ if component.touched => findings.touched(&component.name, rules),
                ComponentState::Nothing(words) => findings.nothing(&component.name, words),
                ComponentState::Found(conditions) => {
                    findings.found(&component.name, conditions, rules)
                }
            }
        }
        findings
    }

    fn touched(&mut self, name: &str, rules: &Rules) {
        if rules.touched_progresses {
            self.progressing(name, "it was changed just now");
        }
    }

    fn nothing(&mut self, name: &str, detail: &str) {
        let reason = format!("{name}Conditions");
        let words = match detail {
            "" => format!("{name} reports no conditions"),
            detail => format!("{name}: {detail}"),
        };
        let all = [
            (Kind::Available, Status::False),
            (Kind::Progressing, Status::True),
            (Kind::Upgradeable, Status::False),
        ];
        for (kind, status) in all {
            self.write(kind, status, &reason, words.clone(), Write::Set);
        }
    }

    fn found(&mut self, name: &str, conditions: &Conditions, rules: &Rules) {
        let Conditions {
            available,
            progressing,
            degraded,
            upgradeable,
        } = conditions;
        let words = |reported: &Option<ComponentCondition>, bad: Status| {
            let reported = reported
                .as_ref()
                .filter(|reported| reported.status == bad)?;
            Some(reported.message.clone())
        };
        let against = match available {
            None => Some("missing \"Available\" condition".to_owned()),
            reported => words(reported, Status::False)
                .map(|words| format!("{name} is not available: {words}")),
        };
        if let Some(words) = against {
            let reason = format!("{name}NotAvailable");
            self.write(Kind::Available, Status::False, &reason, words, Write::Set);
        }
        if let Some(words) = words(progressing, Status::True) {
            self.progressing(name, &words);
        }
        if let Some(words) = words(degraded, Status::True) {
            let reason = format!("{name}Degraded");
            let words = format!("{name} is degraded: {words}");
            self.write(Kind::Degraded, Status::True, &reason, words, Write::Set);
        }
        if let Some(words) = words(upgradeable, Status::False) {
            let reason = format!("{name}NotUpgradeable");
            let words = format!("{name} is not upgradeable: {words}");
            self.write(Kind::Upgradeable, Status::False, &reason, words, Write::Set);
            self.not_upgradeable = true;
        }
        if rules.unknown_blocks {
            self.unknown(name, conditions);
        }
    }

    fn progressing(&mut self, name: &str, words: &str) {
        let reason = format!("{name}Progressing");
        let words = format!("{name} is progressing: {words}");
        let yes = Status::True;
        let no = Status::False;
        self.write(Kind::Progressing, yes, &reason, words.clone(), Write::Set);
        self.write(Kind::Upgradeable, no, &reason, words, Write::IfUnset);
    }

    fn unknown(&mut self, name: &str, conditions: &Conditions) {
        let reported = [
            (Kind::Available, &conditions.available),
            (Kind::Progressing, &conditions.progressing),
            (Kind::Degraded, &conditions.degraded),
            (Kind::Upgradeable, &conditions.upgradeable),
        ];
        for (kind, reported) in reported {
            let words = match reported {
                Some(reported) if reported.status == Status::Unknown => {
                    format!(
                        "{name} does not know whether it is {}: {}",
                        kind.name(),
                        reported.message
                    )
                }
                // An absent Available is as bad as False, and few components report Upgradeable.
                None if matches!(kind, Kind::Progressing | Kind::Degraded) => {
                    format!("{name} does not say whether it is {}", kind.name())
                }
                _ => continue,
            };
            self.doubt(kind, name, words.clone());
            if kind != Kind::Upgradeable {
                self.doubt(Kind::Upgradeable, name, words);
            }
        }
    }

    fn doubt(&mut self, kind: Kind, name: &str, words: String) {
        let entry = self.unknown.entry(kind).or_insert_with(|| Entry {
            status: Status::Unknown,
            reason: String::new(),
            messages: Vec::new(),
        });
        entry.reason = format!("{name}Unknown");
        if !entry.messages.contains(&words) {
            entry.messages.push(words);
        }
    }

    fn write(&mut self, kind: Kind, status: Status, reason: &str, words: String, write: Write) {
        let entry = self.bad.entry(kind).or_insert_with(|| Entry {
            status,
            reason: reason.to_owned(),
            messages: Vec::new(),
        });
        // A component that may not be upgraded because it is in progress never takes the place of
        // another reason.
        if write == Write::Set {
            reason.clone_into(&mut entry.reason);
        }
        if !entry.messages.contains(&words) {
            entry.messages.push(words);
        }
    }
}
