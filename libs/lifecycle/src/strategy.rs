//! The desired power state in one of three fields, and the run strategy that it implies.
//!
//! Invariant: a change of the desired state keeps the field that its owner chose.
//! Failure: [`DesiredStateError`] when more than one field is set.

use std::collections::BTreeMap;
use std::fmt;

use crds::names::{RESUME_STATE, RESUME_STATE_OLD};
use crds::{PowerState, RunStrategy, VirtualMachineSpec};

/// When a machine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// An instance exists and runs.
    Always,
    /// An instance runs until its guest powers off; failures are answered by another one.
    RerunOnFailure,
    /// Requests decide.
    Manual,
    /// No instance.
    Halted,
    /// One instance, ever.
    Once,
    /// No instance, but its memory.
    Suspended,
}

impl Strategy {
    /// The strategy that a specification requests; none of the spellings: `Halted`.
    pub fn from_spec(spec: &VirtualMachineSpec) -> Result<Self, DesiredStateError> {
        Ok(DesiredState::from_spec(spec)?.map_or(Self::Halted, DesiredState::strategy))
    }

    /// As `status.runStrategy` records it. A suspended machine starts again like a halted one.
    #[must_use]
    pub const fn recorded(self) -> RunStrategy {
        match self {
            Self::Always => RunStrategy::Always,
            Self::RerunOnFailure => RunStrategy::RerunOnFailure,
            Self::Manual => RunStrategy::Manual,
            Self::Halted | Self::Suspended => RunStrategy::Halted,
            Self::Once => RunStrategy::Once,
        }
    }

    /// Whether the strategy by itself asks that no instance runs.
    #[must_use]
    pub const fn is_off(self) -> bool {
        matches!(self, Self::Halted | Self::Suspended)
    }
}

/// What an owner wants, in the spelling that was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DesiredState {
    /// `spec.powerState`
    PowerState(PowerState),
    /// `spec.runStrategy`
    RunStrategy(RunStrategy),
    /// `spec.running`
    Running(bool),
}

/// More than one spelling.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} are set: set only one of powerState, runStrategy and running")]
pub struct DesiredStateError(String);

impl DesiredState {
    /// The fields of a specification that spell the desired state; it has at most one of them.
    pub const FIELDS: [&str; 3] = ["powerState", "runStrategy", "running"];

    /// The desired state of a specification, `None` when it has none.
    pub fn from_spec(spec: &VirtualMachineSpec) -> Result<Option<Self>, DesiredStateError> {
        let spelled = [
            ("powerState", spec.power_state.map(Self::PowerState)),
            ("runStrategy", spec.run_strategy.map(Self::RunStrategy)),
            ("running", spec.running.map(Self::Running)),
        ];
        let used: Vec<_> = spelled
            .iter()
            .filter(|(_, desired_state)| desired_state.is_some())
            .collect();
        match used.as_slice() {
            [] => Ok(None),
            [(_, desired_state)] => Ok(*desired_state),
            several => Err(DesiredStateError(
                several
                    .iter()
                    .map(|(n, _)| *n)
                    .collect::<Vec<_>>()
                    .join(" and "),
            )),
        }
    }

    /// The strategy that it means.
    #[must_use]
    pub const fn strategy(self) -> Strategy {
        match self {
            Self::PowerState(PowerState::PoweredOn)
            | Self::RunStrategy(RunStrategy::Always)
            | Self::Running(true) => Strategy::Always,
            Self::PowerState(PowerState::PoweredOff)
            | Self::RunStrategy(RunStrategy::Halted)
            | Self::Running(false) => Strategy::Halted,
            Self::PowerState(PowerState::Suspended) => Strategy::Suspended,
            Self::RunStrategy(RunStrategy::RerunOnFailure) => Strategy::RerunOnFailure,
            Self::RunStrategy(RunStrategy::Manual) => Strategy::Manual,
            Self::RunStrategy(RunStrategy::Once) => Strategy::Once,
        }
    }

    /// "Run", in the same spelling.
    #[must_use]
    pub const fn on(self) -> Self {
        match self {
            Self::PowerState(_) => Self::PowerState(PowerState::PoweredOn),
            Self::RunStrategy(_) => Self::RunStrategy(RunStrategy::Always),
            Self::Running(_) => Self::Running(true),
        }
    }

    /// "Do not run", in the same spelling.
    #[must_use]
    pub const fn off(self) -> Self {
        match self {
            Self::PowerState(_) => Self::PowerState(PowerState::PoweredOff),
            Self::RunStrategy(_) => Self::RunStrategy(RunStrategy::Halted),
            Self::Running(_) => Self::Running(false),
        }
    }

    /// The desired state in the annotation [`RESUME_STATE`] or, without it, under its old name. A
    /// value that is not a desired state is ignored.
    #[must_use]
    pub fn remembered(annotations: &BTreeMap<String, String>) -> Option<Self> {
        let (field, value) = [RESUME_STATE, RESUME_STATE_OLD]
            .into_iter()
            .find_map(|name| annotations.get(name))?
            .split_once('=')?;
        Some(match (field, value) {
            ("running", "true") => Self::Running(true),
            ("powerState", "PoweredOn") => Self::PowerState(PowerState::PoweredOn),
            ("runStrategy", "Always") => Self::RunStrategy(RunStrategy::Always),
            ("runStrategy", "RerunOnFailure") => Self::RunStrategy(RunStrategy::RerunOnFailure),
            ("runStrategy", "Manual") => Self::RunStrategy(RunStrategy::Manual),
            ("runStrategy", "Once") => Self::RunStrategy(RunStrategy::Once),
            _ => return None,
        })
    }

    /// Name of the field.
    #[must_use]
    pub const fn field(self) -> &'static str {
        match self {
            Self::PowerState(_) => "powerState",
            Self::RunStrategy(_) => "runStrategy",
            Self::Running(_) => "running",
        }
    }

    /// Value of the field.
    #[must_use]
    pub fn value(self) -> serde_json::Value {
        match self {
            Self::PowerState(state) => format!("{state:?}").into(),
            Self::RunStrategy(strategy) => format!("{strategy:?}").into(),
            Self::Running(running) => running.into(),
        }
    }
}

impl fmt::Display for DesiredState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PowerState(state) => write!(f, "powerState={state:?}"),
            Self::RunStrategy(strategy) => write!(f, "runStrategy={strategy:?}"),
            Self::Running(running) => write!(f, "running={running}"),
        }
    }
}
