//! What a machine of a chaos run shall be.
//!
//! Invariant: a specification that was made of a desired state is read as the same one.
//! Failure: a specification that no chaos run writes is named.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// The desired state of a machine, in both fields that have more than two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    On,
    Off,
    Suspended,
    Always,
    Halted,
    RerunOnFailure,
    Manual,
    Once,
    /// No object at all.
    Gone,
}

/// When a linked disk becomes independent of its image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Promotion {
    Online,
    Offline,
    Disabled,
}

/// What a machine shall be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DesiredState {
    pub(super) mode: Mode,
    pub(super) class: &'static str,
    pub(super) promotion: Promotion,
}

/// The classes; machines begin with the last one.
pub(super) const CLASSES: [(&str, &str); 2] = [("small", "112Mi"), ("large", "128Mi")];

impl Mode {
    const ALL: [Self; 8] = [
        Self::On,
        Self::Off,
        Self::Suspended,
        Self::Always,
        Self::Halted,
        Self::RerunOnFailure,
        Self::Manual,
        Self::Once,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::On => "PoweredOn",
            Self::Off => "PoweredOff",
            Self::Suspended => "Suspended",
            Self::Always => "Always",
            Self::Halted => "Halted",
            Self::RerunOnFailure => "RerunOnFailure",
            Self::Manual => "Manual",
            Self::Once => "Once",
            Self::Gone => "deleted",
        }
    }

    pub(super) const fn is_off(self) -> bool {
        matches!(self, Self::Off | Self::Halted | Self::Gone)
    }

    pub(super) const fn is_on(self) -> bool {
        matches!(self, Self::On | Self::Always | Self::RerunOnFailure)
    }

    const fn is_power_state(self) -> bool {
        matches!(self, Self::On | Self::Off | Self::Suspended)
    }
}

impl Promotion {
    pub(super) const ALL: [Self; 3] = [Self::Online, Self::Offline, Self::Disabled];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Online => "Online",
            Self::Offline => "Offline",
            Self::Disabled => "Disabled",
        }
    }
}

impl DesiredState {
    pub(super) const FIRST: Self = Self {
        mode: Mode::On,
        class: CLASSES[1].0,
        promotion: Promotion::Online,
    };

    /// The fields of a specification, `null` where one must not be.
    pub(super) fn spec(self) -> Value {
        let name = json!(self.mode.name());
        let is_power_state = self.mode.is_power_state();
        json!({
            "className": self.class,
            "powerState": if is_power_state { name.clone() } else { Value::Null },
            "runStrategy": if is_power_state { Value::Null } else { name },
            "promoteDisksMode": self.promotion.name(),
        })
    }

    /// What a specification says.
    ///
    /// # Errors
    ///
    /// It is not one that chaos writes.
    pub(super) fn read(spec: &Value) -> Result<Self> {
        let word = |field: &str| spec[field].as_str().map(ToOwned::to_owned);
        let strategy = word("runStrategy");
        let named = match (word("powerState"), strategy) {
            (Some(named), None) | (None, Some(named)) => named,
            _ => bail!("not one desired state: {spec}"),
        };
        let mode = Mode::ALL.into_iter().find(|mode| mode.name() == named);
        let class = word("className").unwrap_or_default();
        let class = CLASSES.into_iter().find(|(name, _)| *name == class);
        let promotion = word("promoteDisksMode").unwrap_or_else(|| "Online".to_owned());
        let promotion = Promotion::ALL
            .into_iter()
            .find(|mode| mode.name() == promotion);
        Ok(Self {
            mode: mode.with_context(|| format!("unknown power state: {spec}"))?,
            class: class.with_context(|| format!("unknown class: {spec}"))?.0,
            promotion: promotion.with_context(|| format!("unknown promotion: {spec}"))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_desired_state_is_read_from_its_own_specification() {
        for mode in Mode::ALL {
            for promotion in Promotion::ALL {
                let desired = DesiredState {
                    mode,
                    promotion,
                    ..DesiredState::FIRST
                };
                assert_eq!(DesiredState::read(&desired.spec()).unwrap(), desired);
            }
        }
    }

    #[test]
    fn a_specification_with_two_desired_states_or_none_is_refused() {
        let both =
            json!({ "className": "large", "powerState": "PoweredOn", "runStrategy": "Once" });
        let none = json!({ "className": "large" });
        let other = json!({ "className": "huge", "powerState": "PoweredOn" });
        for spec in [both, none, other] {
            assert!(DesiredState::read(&spec).is_err(), "{spec}");
        }
    }
}
