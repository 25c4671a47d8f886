//! The size of a machine: from its class, or from its own specification.
//!
//! Invariant: a class counts as it was when the machine took it over; see `act::config`.
//! Failure: a class that is missing, served by another controller, or makes no sense.

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::{ResourceList, VirtualMachineClass, VirtualMachineClassSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;

use super::{Missing, Pass};
use crate::context::Key;

const LEAST_MEMORY: i128 = 32 << 20;
/// What nodes can give to one machine.
const MOST_CPUS: u32 = 255;
/// Name by which classes select this controller.
const CONTROLLER_NAME: &str = "vmlet.dev/controller";

/// A machine's size and what comes with it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Size {
    pub(crate) cpus: u32,
    pub(crate) memory: Quantity,
    pub(crate) requests: ResourceList,
    pub(crate) limits: ResourceList,
    pub(crate) runtime_class: String,
    pub(crate) machine_type: Option<String>,
    pub(crate) cpu_model: Option<String>,
    pub(crate) node_selector: BTreeMap<String, String>,
    /// Name of the class, and its `uid/generation`.
    pub(crate) class: Option<(String, String)>,
}

/// The class that the machine names, if it names one.
pub(super) fn find(pass: &Pass<'_>) -> Result<Option<Arc<VirtualMachineClass>>, Missing> {
    let Some(name) = pass.vm.spec.class_name.as_deref() else {
        return Ok(None);
    };
    let key = Key::new(&pass.key.namespace, name);
    let found = pass.ctx.stores.classes.get(&key.reference());
    let class = found.ok_or_else(|| {
        Missing::new(
            "NotFound",
            format!(
                "VirtualMachineClass {name} does not exist in namespace {}",
                key.namespace
            ),
        )
    })?;
    let ours = CONTROLLER_NAME;
    match &class.spec.controller_name {
        Some(other) if !other.is_empty() && other != ours => Err(Missing::new(
            "Invalid",
            format!("VirtualMachineClass {name} is served by controller {other}"),
        )),
        _ => Ok(Some(class)),
    }
}

pub(super) fn check(pass: &Pass<'_>) -> Result<Size, Missing> {
    let size = match find(pass)? {
        Some(class) => of_class(&class.spec, (class.name_any(), revision(&class))),
        None => match &pass.vm.spec.hardware {
            Some(own) => Size {
                cpus: own.cpus,
                memory: own.memory.clone(),
                requests: ResourceList::default(),
                limits: ResourceList::default(),
                runtime_class: crds::names::RUNTIME_CLASS.to_owned(),
                machine_type: None,
                cpu_model: None,
                node_selector: BTreeMap::new(),
                class: None,
            },
            None => {
                let message = "the machine names neither a class nor hardware";
                return Err(Missing::new("Invalid", message));
            }
        },
    };
    check_size(&size).map(|()| size)
}

/// The size that a class gives, of that name and revision.
pub(crate) fn of_class(spec: &VirtualMachineClassSpec, class: (String, String)) -> Size {
    let runtime_class = crds::names::RUNTIME_CLASS.to_owned();
    let resources = spec.policies.as_ref().and_then(|p| p.resources.clone());
    let resources = resources.unwrap_or_default();
    Size {
        cpus: spec.hardware.cpus,
        memory: spec.hardware.memory.clone(),
        requests: resources.requests,
        limits: resources.limits,
        runtime_class: spec.runtime_class_name.clone().unwrap_or(runtime_class),
        machine_type: spec.machine_type.clone(),
        cpu_model: spec.cpu_model.clone(),
        node_selector: spec.node_selector.clone(),
        class: Some(class),
    }
}

/// UID and generation: they distinguish one content of a class from the next.
pub(crate) fn revision(class: &VirtualMachineClass) -> String {
    let generation = class.metadata.generation.unwrap_or_default();
    format!("{}/{generation}", class.uid().unwrap_or_default())
}

fn check_size(size: &Size) -> Result<(), Missing> {
    let invalid = |message: String| Err(Missing::new("Invalid", message));
    if !(1..=MOST_CPUS).contains(&size.cpus) {
        return invalid(format!("{} CPUs are not from 1 to {MOST_CPUS}", size.cpus));
    }
    match bytes(&size.memory) {
        Some(memory) if memory >= LEAST_MEMORY => Ok(()),
        Some(_) => invalid(format!("{} of memory are less than 32Mi", size.memory.0)),
        None => invalid(format!("{} is not a quantity of memory", size.memory.0)),
    }
}

/// Bytes of a quantity; `None`: it is none.
pub(crate) fn bytes(quantity: &Quantity) -> Option<i128> {
    scaled(quantity, 0)
}

/// A number of bytes, in the largest unit that divides it.
pub(crate) fn quantity(bytes: i128) -> Quantity {
    Quantity(match bytes {
        bytes if bytes % (1 << 30) == 0 => format!("{}Gi", bytes >> 30),
        bytes if bytes % (1 << 20) == 0 => format!("{}Mi", bytes >> 20),
        bytes if bytes % (1 << 10) == 0 => format!("{}Ki", bytes >> 10),
        bytes => bytes.to_string(),
    })
}

/// Thousandths of a quantity, as CPUs are counted; `None`: it is none.
pub(crate) fn thousandths(quantity: &Quantity) -> Option<i128> {
    scaled(quantity, 3)
}

fn scaled(quantity: &Quantity, more: i32) -> Option<i128> {
    let text = quantity.0.as_str();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    let (twos, tens) = scale(unit)?;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits: i128 = format!("{whole}{part}").parse().ok()?;
    let digits = digits.checked_mul(1 << twos)?;
    let tens = tens + more - i32::try_from(part.len()).ok()?;
    let power = 10_i128.checked_pow(tens.unsigned_abs())?;
    if tens < 0 {
        Some(digits / power)
    } else {
        digits.checked_mul(power)
    }
}

/// Powers of two and of ten that the end of a quantity represents.
fn scale(unit: &str) -> Option<(u32, i32)> {
    Some(match unit {
        "" => (0, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        exponent => {
            let power: i32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            ((-18..=18).contains(&power)).then_some((0, power))?
        }
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// Whatever the rule for sizes lets in, in whichever spelling.
    #[rstest]
    #[case::plain("1073741824", Some(1 << 30))]
    #[case::binary("1Gi", Some(1 << 30))]
    #[case::decimal("1.5k", Some(1500))]
    #[case::thousandths("1073741824000m", Some(1 << 30))]
    #[case::exponent("1048576e3", Some(1_048_576_000))]
    #[case::large_exponent("1048576E3", Some(1_048_576_000))]
    #[case::exbi("1Ei", Some(1 << 60))]
    #[case::exa("1E", Some(1_000_000_000_000_000_000))]
    #[case::fraction_of_a_byte("1500m", Some(1))]
    #[case::nothing("", None)]
    #[case::a_unit_alone("Gi", None)]
    #[case::negative("-1Gi", None)]
    #[case::unknown("1Zi", None)]
    #[case::two_points("1.2.3", None)]
    #[case::far_too_large("1e99", None)]
    #[case::far_too_long("100000000000000000000000000000000000000000", None)]
    fn a_quantity_has_so_many_bytes(#[case] text: &str, #[case] wanted: Option<i128>) {
        assert_eq!(bytes(&Quantity(text.to_owned())), wanted);
    }

    #[test]
    fn cpus_are_counted_in_thousandths() {
        for (text, wanted) in [("2", 2000), ("250m", 250), ("1.5", 1500), ("100u", 0)] {
            assert_eq!(thousandths(&Quantity(text.to_owned())), Some(wanted));
        }
    }
}
