//! How machines of an earlier template are replaced.
//!
//! Invariant: nothing is replaced without `RollingUpdate`: a replaced machine loses its root disk.
//! Failure: none.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules::rule;

/// A number of at most 1000, or a percentage.
const COUNT: &str = "type(self) == int ? int(self) >= 0 && int(self) <= 1000 : \
    string(self).matches('^([0-9]|[1-9][0-9]|100)%$')";

/// How machines that were made from an earlier template are replaced.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaUpdateStrategy {
    /// `OnDelete`: a machine is made from the present template when a user has deleted the one before
    /// it. `RollingUpdate`: the set deletes machines of earlier templates, **with their root
    /// disks**, and makes them again; claims of volumeClaimTemplates stay.
    #[serde(default, rename = "type")]
    pub kind: ReplicaUpdateType,
    /// How many machines are replaced at a time.
    #[serde(default)]
    pub rolling_update: RollingUpdate,
}

/// Who deletes machines of earlier templates.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[schemars(transform = crate::schema::without_description)]
pub enum ReplicaUpdateType {
    /// Users.
    #[default]
    OnDelete,
    /// The set.
    RollingUpdate,
}

/// How many machines are replaced at a time.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RollingUpdate {
    /// Machines beyond `replicas` that are made during an update: a number, or a percentage of `replicas`
    /// that is rounded up. They have the indices after the last one, and are deleted at the end.
    #[serde(default = "default::zero")]
    #[x_kube(validation = rule(COUNT, "must be a number of at most 1000, or a percentage such as 25%"))]
    pub max_surge: IntOrString,
    /// Machines that may be unavailable during an update: a number, or a percentage of `replicas` that is
    /// rounded down. If both are 0, one machine may be unavailable.
    #[serde(default = "default::one")]
    #[x_kube(validation = rule(COUNT, "must be a number of at most 1000, or a percentage such as 25%"))]
    pub max_unavailable: IntOrString,
    /// Machines with a lower index are not replaced.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1000))]
    pub partition: u32,
}

impl Default for RollingUpdate {
    fn default() -> Self {
        Self {
            max_surge: default::zero(),
            max_unavailable: default::one(),
            partition: 0,
        }
    }
}

impl RollingUpdate {
    /// The most machines that an update may add to `replicas`.
    #[must_use]
    pub fn surge(&self, replicas: u32) -> u32 {
        count(&self.max_surge, replicas, true)
    }

    /// The most machines that may be unavailable in an update; one where it may neither add nor miss any.
    #[must_use]
    pub fn unavailable(&self, replicas: u32) -> u32 {
        let number = count(&self.max_unavailable, replicas, false);
        match (number, self.surge(replicas)) {
            (0, 0) => 1,
            (number, _) => number,
        }
    }
}

/// What the API server would refuse counts as 0.
fn count(value: &IntOrString, replicas: u32, up: bool) -> u32 {
    let most = crate::VirtualMachineReplicaSetSpec::MOST;
    let number = match value {
        IntOrString::Int(number) => u32::try_from(*number).unwrap_or_default(),
        IntOrString::String(text) => {
            let percent = text
                .strip_suffix('%')
                .and_then(|number| number.parse().ok());
            let hundredths = replicas.min(most) * percent.unwrap_or(0_u32).min(100);
            if up {
                hundredths.div_ceil(100)
            } else {
                hundredths / 100
            }
        }
    };
    number.min(most)
}

/// Defaults that the API server sets.
mod default {
    use super::IntOrString;

    pub(super) const fn zero() -> IntOrString {
        IntOrString::Int(0)
    }

    pub(super) const fn one() -> IntOrString {
        IntOrString::Int(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_of_surge_are_rounded_up_and_those_of_absence_down() {
        let of = |surge: &str, absent: &str| RollingUpdate {
            max_surge: IntOrString::String(surge.to_owned()),
            max_unavailable: IntOrString::String(absent.to_owned()),
            partition: 0,
        };
        let counts = |rolling: RollingUpdate| (rolling.surge(10), rolling.unavailable(10));
        assert_eq!(counts(of("25%", "25%")), (3, 2));
        assert_eq!(counts(of("1%", "1%")), (1, 0), "one at a time by surge");
        assert_eq!(counts(of("0%", "5%")), (0, 1), "else no update would end");
        assert_eq!(counts(of("nonsense", "-3%")), (0, 1));
        assert_eq!(counts(RollingUpdate::default()), (0, 1));
        let negative = RollingUpdate {
            max_surge: IntOrString::Int(-1),
            max_unavailable: IntOrString::Int(i32::MAX),
            partition: 0,
        };
        assert_eq!(counts(negative), (0, 1000));
    }
}
