//! Labels of the Node that say what it has for machines: pure.
//!
//! Invariant: a family of labels that the daemon knows replaces all labels of that family; one that
//! it does not know (yet) stays as it is. Labels outside of our domains are neither read nor
//! written. Each name and value is one that the API server takes, and a family has at most
//! [`MOST`].
//! Failure: a name that is no label's is left out.

use std::collections::BTreeMap;

use crds::names::{CPU_MODEL_DOMAIN, MACHINE_TYPE_DOMAIN, NODE_DOMAIN};
use nodeapi::v1::{InfoResponse, Kernel};

/// Labels of a family.
const MOST: usize = 64;
/// Bytes of a name behind the domain, and of a value.
const LONGEST: usize = 63;

/// Keys with their new values; none removes the key.
pub(super) type Changes = BTreeMap<String, Option<String>>;

/// Labels that change together, as far as they are known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Labels(BTreeMap<Family, BTreeMap<String, String>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Family {
    Accelerator,
    Versions,
    Kernel,
    Firmware,
    MachineTypes,
    CpuModels,
}

impl Labels {
    /// What the daemon knows.
    pub(super) fn from_info(info: &InfoResponse) -> Self {
        let host = info.host.as_ref();
        let models = host.map_or(&[][..], |host| host.cpu_models.as_slice());
        let named = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let versions = [
            named("libvirt-version", &info.libvirt_version),
            named("qemu-version", &info.qemu_version),
        ];
        let kernel = host.and_then(|host| host.kernel.as_ref());
        let all = [
            (
                Family::Accelerator,
                known(vec![named("accelerator", &info.accelerator)]),
            ),
            (Family::Versions, known(versions.to_vec())),
            (Family::Kernel, kernel.map(of_kernel)),
            (
                Family::Firmware,
                host.and_then(|host| host.uefi).map(of_firmware),
            ),
            (
                Family::MachineTypes,
                known(
                    newest(&info.machine_types)
                        .map(|name| present(name))
                        .collect(),
                ),
            ),
            (
                Family::CpuModels,
                known(plain_first(models).map(|name| present(name)).collect()),
            ),
        ];
        let all = all.into_iter();
        Self(
            all.filter_map(|(family, pairs)| Some((family, family.labels(pairs?))))
                .collect(),
        )
    }

    /// What is to be changed on a Node with these labels.
    pub(super) fn changes(&self, found: &BTreeMap<String, String>) -> Changes {
        let mut changes = Changes::new();
        for (family, labels) in &self.0 {
            let old = found.keys().filter(|key| family.owns(key));
            let old = old.filter(|key| !labels.contains_key(*key));
            changes.extend(old.map(|key| (key.clone(), None)));
            let new = labels
                .iter()
                .filter(|(key, value)| found.get(*key) != Some(*value));
            changes.extend(new.map(|(key, value)| (key.clone(), Some(value.clone()))));
        }
        changes
    }
}

impl Family {
    const fn domain(self) -> &'static str {
        match self {
            Self::Accelerator | Self::Versions | Self::Kernel | Self::Firmware => NODE_DOMAIN,
            Self::MachineTypes => MACHINE_TYPE_DOMAIN,
            Self::CpuModels => CPU_MODEL_DOMAIN,
        }
    }

    fn owns(self, key: &str) -> bool {
        let Some((domain, name)) = key.split_once('/') else {
            return false;
        };
        let is_mine = match self {
            Self::Accelerator => name == "accelerator",
            Self::Versions => name.ends_with("-version") && name != CGROUP_VERSION,
            Self::Firmware => name == UEFI,
            // What earlier or later versions have announced there, too.
            Self::Kernel => ![Self::Accelerator, Self::Versions, Self::Firmware]
                .into_iter()
                .any(|other| other.owns(key)),
            Self::MachineTypes | Self::CpuModels => true,
        };
        domain == self.domain() && is_mine
    }

    fn labels(self, pairs: Vec<(String, String)>) -> BTreeMap<String, String> {
        let fits = |(name, value): &(String, String)| is_word(name) && is_word(value);
        let pairs = pairs.into_iter().filter(fits).take(MOST);
        let domain = self.domain();
        pairs
            .map(|(name, value)| (format!("{domain}/{name}"), value))
            .collect()
    }
}

/// Name of the label with the version of cgroups, which is no program's.
const CGROUP_VERSION: &str = "cgroup-version";

/// Name of the label of nodes whose machines can boot by UEFI.
const UEFI: &str = "uefi";

fn of_firmware(has_uefi: bool) -> Vec<(String, String)> {
    has_uefi.then(|| present(UEFI)).into_iter().collect()
}

/// What is absent has no label, so that `Exists` asks for it.
fn of_kernel(kernel: &Kernel) -> Vec<(String, String)> {
    let number = |number: u32| (number > 0).then(|| number.to_string());
    let has_mounts = kernel.idmapped_mounts == Some(true);
    let apparmor = Some(&kernel.app_armor).filter(|state| *state != "unknown");
    let all = [
        ("landlock", number(kernel.landlock_abi)),
        (CGROUP_VERSION, number(kernel.cgroup_version)),
        ("idmapped-mounts", has_mounts.then(|| "true".to_owned())),
        ("apparmor", apparmor.cloned()),
    ];
    let all = all.into_iter();
    all.filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
}

/// The daemon leaves empty what it does not know.
fn known(mut pairs: Vec<(String, String)>) -> Option<Vec<(String, String)>> {
    pairs.retain(|(_, value)| !value.is_empty());
    (!pairs.is_empty()).then_some(pairs)
}

fn present(name: &str) -> (String, String) {
    (name.to_owned(), "true".to_owned())
}

/// The daemon lists the oldest first.
fn newest(types: &[String]) -> impl Iterator<Item = &String> {
    types.iter().rev()
}

/// Names without a version (`EPYC`) before those with one (`EPYC-v2`), of which there are hundreds.
fn plain_first(models: &[String]) -> impl Iterator<Item = &String> {
    let plain = models.iter().filter(|name| !is_versioned(name));
    plain.chain(models.iter().filter(|name| is_versioned(name)))
}

fn is_versioned(model: &str) -> bool {
    let version = model.rsplit_once("-v").map(|(_, version)| version);
    version.is_some_and(|v| !v.is_empty() && v.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether it can be the name of a label, or its value.
fn is_word(text: &str) -> bool {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let is_inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    text.len() <= LONGEST
        && ends(text.chars().next())
        && ends(text.chars().next_back())
        && text.chars().all(is_inside)
}

#[cfg(test)]
mod tests;
