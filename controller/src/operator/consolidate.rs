//! Consolidates the components to five conditions.
//!
//! Invariant: a function of its input alone; every condition has a status and a reason in every
//! pass.
//! Failure: none; what could not be looked at is part of the input.

use crds::Health;
use crds::conditions::Status;

use super::component::Component;
use super::findings::{Entry, Findings};

/// Types of the five conditions, in the order in which they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Everything could be looked at.
    ReconcileComplete,
    /// The installation serves.
    Available,
    /// Something is changing.
    Progressing,
    /// Something is wrong.
    Degraded,
    /// A new version may be rolled out.
    Upgradeable,
}

/// Where the rules of the reference implementation and ours differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// A degraded component makes the whole unavailable. `spec.strict`.
    pub degraded_is_unavailable: bool,
    /// What a component does not know, or does not report of Progressing and Degraded, counts as
    /// Unknown.
    pub unknown_blocks: bool,
    /// A component that was just created or changed is progressing.
    pub touched_progresses: bool,
    /// A component that cannot be looked at does not stop the pass.
    pub evaluate_all: bool,
}

/// A condition of the whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Its type.
    pub kind: Kind,
    /// Its status.
    pub status: Status,
    /// One word.
    pub reason: String,
    /// The messages of all components.
    pub message: String,
}

/// Whether a manager of bundles may replace the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct External {
    /// It may.
    pub upgradeable: bool,
    /// One word.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

/// Summary of all components.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The five conditions; none when there is no object to write them to.
    pub conditions: Vec<Verdict>,
    /// One word; none without an object.
    pub health: Option<Health>,
    /// For managers of bundles.
    pub external: External,
    /// No component reports a finding and no upgrade is in progress; `None`: the pass did not get
    /// that far.
    pub ready: Option<bool>,
    /// The upgrade is over: the running version may be recorded.
    pub upgraded: bool,
}

const COMPLETED: &str = "ReconcileCompleted";
const COMPLETED_WORDS: &str = "Reconcile completed successfully";
const DEGRADED: &str = "ComponentsDegraded";
/// Reason of Progressing while a version is rolled out.
pub(super) const UPGRADING: &str = "Upgrading";

impl Rules {
    /// Ours; `strict` is the object's.
    #[must_use]
    pub const fn ours(strict: bool) -> Self {
        Self {
            degraded_is_unavailable: strict,
            unknown_blocks: true,
            touched_progresses: true,
            evaluate_all: true,
        }
    }

    /// The reference implementation's.
    pub const REFERENCE: Self = Self {
        degraded_is_unavailable: true,
        unknown_blocks: false,
        touched_progresses: false,
        evaluate_all: false,
    };
}

impl Kind {
    /// All five.
    pub const ALL: [Self; 5] = [
        Self::ReconcileComplete,
        Self::Available,
        Self::Progressing,
        Self::Degraded,
        Self::Upgradeable,
    ];

    /// Those that components report.
    pub(super) const COLLECTED: [Self; 4] = [
        Self::Available,
        Self::Progressing,
        Self::Degraded,
        Self::Upgradeable,
    ];

    /// As the condition's type is spelled.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ReconcileComplete => "ReconcileComplete",
            Self::Available => "Available",
            Self::Progressing => "Progressing",
            Self::Degraded => "Degraded",
            Self::Upgradeable => "Upgradeable",
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::ReconcileComplete => "complete",
            Self::Available => "available",
            Self::Progressing => "progressing",
            Self::Degraded => "degraded",
            Self::Upgradeable => "upgradeable",
        }
    }

    /// Its status when no component reports a finding.
    pub(super) const fn good(self) -> Status {
        match self {
            Self::ReconcileComplete | Self::Available | Self::Upgradeable => Status::True,
            Self::Progressing | Self::Degraded => Status::False,
        }
    }
}

impl Verdict {
    fn new(kind: Kind, status: Status, reason: &str, message: &str) -> Self {
        Self {
            kind,
            status,
            reason: reason.to_owned(),
            message: message.to_owned(),
        }
    }

    fn from_entry(kind: Kind, entry: &Entry) -> Self {
        Self::new(kind, entry.status, &entry.reason, &entry.message())
    }
}

impl External {
    fn yes() -> Self {
        Self {
            upgradeable: true,
            reason: "Upgradeable".to_owned(),
            message: String::new(),
        }
    }
}

/// Summary of all components. `upgrade`: the running version, while it is not the recorded one.
#[must_use]
pub fn consolidate(components: &[Component], upgrade: Option<&str>, rules: &Rules) -> Summary {
    let findings = Findings::collect(components, rules);
    let stopped = !findings.errors.is_empty() && !rules.evaluate_all;
    let all_up =
        findings.bad.is_empty() && findings.unknown.is_empty() && findings.errors.is_empty();
    let upgraded = upgrade.is_some() && all_up && components.iter().all(Component::upgraded);
    let upgrade = upgrade.filter(|_| !upgraded);
    let mut conditions = vec![complete(&findings)];
    for kind in Kind::COLLECTED {
        conditions.push(match upgrade {
            Some(version) if kind == Kind::Progressing && !stopped => Verdict::new(
                kind,
                Status::True,
                UPGRADING,
                &upgrading(version, components),
            ),
            _ => verdict(kind, &findings, stopped, rules),
        });
    }
    Summary {
        health: Some(health(&conditions, upgrade.is_some(), rules)),
        external: external(&findings, upgrade),
        ready: (!stopped).then_some(all_up && upgrade.is_none()),
        upgraded,
        conditions,
    }
}

/// The state of a new object before the first pass.
#[must_use]
pub fn initial() -> Summary {
    let words = "Initializing the status of the installation";
    let verdict = |kind, status| Verdict::new(kind, status, "Init", words);
    Summary {
        conditions: vec![
            verdict(Kind::ReconcileComplete, Status::Unknown),
            verdict(Kind::Available, Status::False),
            verdict(Kind::Progressing, Status::True),
            verdict(Kind::Degraded, Status::False),
            verdict(Kind::Upgradeable, Status::Unknown),
        ],
        health: Some(Health::Error),
        external: External::yes(),
        ready: None,
        upgraded: false,
    }
}

/// The state of an object that has not the one name that counts.
#[must_use]
pub fn invalid_request(name: &str, wanted: &str) -> Summary {
    let words = format!("the name is {name}, only {wanted} counts");
    let mut conditions = vec![Verdict::new(
        Kind::ReconcileComplete,
        Status::False,
        "InvalidRequest",
        &words,
    )];
    conditions.extend(Kind::COLLECTED.map(unset));
    Summary {
        conditions,
        ..initial()
    }
}

/// The state of an object that is not there: the object no longer exists.
#[must_use]
pub fn gone() -> Summary {
    Summary {
        conditions: Vec::new(),
        health: None,
        ..initial()
    }
}

fn complete(findings: &Findings) -> Verdict {
    let kind = Kind::ReconcileComplete;
    if findings.errors.is_empty() {
        return Verdict::new(kind, Status::True, COMPLETED, COMPLETED_WORDS);
    }
    let failed = Entry {
        status: Status::False,
        reason: "ReconcileFailed".to_owned(),
        messages: findings.errors.clone(),
    };
    let mut verdict = Verdict::from_entry(kind, &failed);
    verdict.message.insert_str(0, "Error while reconciling: ");
    verdict
}

fn verdict(kind: Kind, findings: &Findings, stopped: bool, rules: &Rules) -> Verdict {
    if let Some(entry) = findings.bad.get(&kind) {
        return Verdict::from_entry(kind, entry);
    }
    if stopped {
        return unset(kind);
    }
    let degraded = findings.bad.contains_key(&Kind::Degraded);
    let unusable = match kind {
        Kind::Available => degraded && rules.degraded_is_unavailable,
        Kind::Upgradeable => degraded,
        _ => false,
    };
    if unusable {
        let words = format!("not {} due to degraded components", kind.name());
        return Verdict::new(kind, Status::False, DEGRADED, &words);
    }
    match findings.unknown.get(&kind) {
        Some(entry) => Verdict::from_entry(kind, entry),
        None => Verdict::new(kind, kind.good(), COMPLETED, COMPLETED_WORDS),
    }
}

fn unset(kind: Kind) -> Verdict {
    Verdict::new(kind, Status::Unknown, "StatusUnknown", "Unknown Status")
}

fn upgrading(version: &str, components: &[Component]) -> String {
    let waiting: Vec<_> = components
        .iter()
        .filter(|component| !component.upgraded())
        .map(|component| component.name.as_str())
        .collect();
    let mut words = format!("now upgrading to version {version}");
    if !waiting.is_empty() {
        words += &format!(", waiting for {}", waiting.join(", "));
    }
    words
}

fn health(conditions: &[Verdict], upgrading: bool, rules: &Rules) -> Health {
    let is = |kind, status| {
        conditions
            .iter()
            .any(|c| c.kind == kind && c.status == status)
    };
    let degraded = is(Kind::Degraded, Status::True);
    let unavailable = !is(Kind::Available, Status::True) && !upgrading;
    let incomplete = !is(Kind::ReconcileComplete, Status::True);
    let under_way = is(Kind::Progressing, Status::True) && !upgrading;
    let doubtful = rules.unknown_blocks
        && (is(Kind::Progressing, Status::Unknown) || is(Kind::Degraded, Status::Unknown));
    if degraded || unavailable {
        Health::Error
    } else if incomplete || under_way || doubtful {
        Health::Warning
    } else {
        Health::Healthy
    }
}

fn external(findings: &Findings, upgrade: Option<&str>) -> External {
    if let Some(version) = upgrade {
        return External {
            upgradeable: false,
            reason: "AlreadyPerformingUpgrade".to_owned(),
            message: format!("upgrading to version {version}"),
        };
    }
    match findings.bad.get(&Kind::Upgradeable) {
        Some(entry) if findings.not_upgradeable => External {
            upgradeable: false,
            reason: entry.reason.clone(),
            message: entry.message(),
        },
        _ => External::yes(),
    }
}
