//! The status of one component, as four conditions that all components share.
//!
//! Invariant: a condition that a component does not report is absent, which is not the same as
//! Unknown.
//! Failure: a component that could not be looked at carries the error instead of conditions.

use crds::conditions::Status;

/// A condition as a component reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComponentCondition {
    /// Its status.
    pub status: Status,
    /// A sentence about it.
    pub message: String,
}

/// The four conditions that count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// It serves.
    pub available: Option<ComponentCondition>,
    /// It is changing.
    pub progressing: Option<ComponentCondition>,
    /// Something about it is wrong.
    pub degraded: Option<ComponentCondition>,
    /// It may be replaced by another version.
    pub upgradeable: Option<ComponentCondition>,
}

/// What was found out about a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ComponentState {
    /// Its conditions.
    Found(Conditions),
    /// It has no conditions, or does not exist; which of both, unless empty.
    Nothing(String),
    /// It could not be looked at.
    Failed(String),
}

/// A component in a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    /// What reasons call it, such as `Runtime`.
    pub name: String,
    /// What was found out.
    pub state: ComponentState,
    /// It was created or changed by us in this pass, so that its conditions are not those of what
    /// it is now.
    pub touched: bool,
    /// It runs the version that it should.
    pub version_matches: bool,
}

impl ComponentCondition {
    /// A condition with its sentence.
    #[must_use]
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }

    /// True with that sentence if there is one, else False.
    #[must_use]
    pub fn if_any(message: Option<String>) -> Self {
        match message {
            Some(message) => Self::new(Status::True, message),
            None => Self::new(Status::False, ""),
        }
    }

    /// False with that sentence if there is one, else True.
    #[must_use]
    pub fn unless_any(message: Option<String>) -> Self {
        match message {
            Some(message) => Self::new(Status::False, message),
            None => Self::new(Status::True, ""),
        }
    }
}

impl Conditions {
    /// Conditions as objects have them: type, status and message. `None` when there are none at
    /// all.
    #[must_use]
    pub fn read(conditions: impl IntoIterator<Item = (String, String, String)>) -> Option<Self> {
        let mut all = Self::default();
        let mut any = false;
        for (kind, status, message) in conditions {
            any = true;
            let status = match status.as_str() {
                "True" => Status::True,
                "False" => Status::False,
                _ => Status::Unknown,
            };
            let reported = Some(ComponentCondition { status, message });
            match kind.as_str() {
                "Available" => all.available = reported,
                "Progressing" => all.progressing = reported,
                "Degraded" => all.degraded = reported,
                "Upgradeable" => all.upgradeable = reported,
                _ => {}
            }
        }
        any.then_some(all)
    }

    /// No objection to an upgrade of the others: nothing is unavailable, in progress or degraded,
    /// and all three are reported. Whether it is upgradeable itself does not count.
    #[must_use]
    pub fn ready_for_upgrade(&self) -> bool {
        let is = |reported: &Option<ComponentCondition>, bad| {
            reported
                .as_ref()
                .is_some_and(|reported| reported.status != bad)
        };
        is(&self.available, Status::False)
            && is(&self.progressing, Status::True)
            && is(&self.degraded, Status::True)
    }
}

impl Component {
    /// A component that is found as it is, with the version that it should have.
    #[must_use]
    pub fn found(name: impl Into<String>, conditions: Conditions) -> Self {
        Self::new(name, ComponentState::Found(conditions))
    }

    /// A component that has no conditions, or does not exist.
    #[must_use]
    pub fn nothing(name: impl Into<String>, words: impl Into<String>) -> Self {
        Self::new(name, ComponentState::Nothing(words.into()))
    }

    /// A component that could not be looked at.
    #[must_use]
    pub fn failed(name: impl Into<String>, error: impl Into<String>) -> Self {
        Self::new(name, ComponentState::Failed(error.into()))
    }

    /// A component as it was checked.
    #[must_use]
    pub fn new(name: impl Into<String>, state: ComponentState) -> Self {
        Self {
            name: name.into(),
            state,
            touched: false,
            version_matches: true,
        }
    }

    /// The same, knowing whether it runs the version that it should.
    #[must_use]
    pub fn with_version(mut self, matches: bool) -> Self {
        self.version_matches = matches;
        self
    }

    /// It has nothing against the end of an upgrade.
    pub(super) fn upgraded(&self) -> bool {
        let ready = match &self.state {
            ComponentState::Found(conditions) => conditions.ready_for_upgrade(),
            ComponentState::Nothing(_) | ComponentState::Failed(_) => false,
        };
        ready && self.version_matches && !self.touched
    }
}
