//! The machine that a package becomes.
//!
//! Invariant: each part of the package that the machine does not have as the package says it is in the
//! report. Texts of the package reach the machine only where they are checked: a MAC address.
//! Failure: [`PlanError`].

use serde_json::{Map, Value, json};

use super::ovf::{Description, DiskEntry, FileReference, Item, OvfError, kind};
use super::report::{Fate, Report};
use super::shown;

mod devices;
mod volumes;

const MIB: u64 = 1 << 20;
/// Bounds of a machine's hardware.
const CPUS: std::ops::RangeInclusive<u64> = 1..=512;
const MEMORY: std::ops::RangeInclusive<u64> = 32 * MIB..=16 << 40;

/// Why a package becomes no machine.
#[derive(Debug, thiserror::Error)]
pub(super) enum PlanError {
    #[error(transparent)]
    Descriptor(#[from] OvfError),
    #[error("the package has no {0}: give the machine a size by --class")]
    NoSize(&'static str),
    #[error(
        "the package has {0}, which is out of the range of a machine: give it a size by --class"
    )]
    Size(String),
    #[error("the package has no disk with content")]
    NoDisk,
    #[error("the package has no disk {0:?} with content; those that it has: {1}")]
    UnknownDisk(String, String),
    #[error("disk {0:?} needs a parent disk: export the machine as a whole, without snapshots")]
    Parent(String),
    #[error("the file {0:?} is in pieces: join them, and remove ovf:chunkSize from the descriptor")]
    Chunks(String),
    #[error("the package has no further disk {0:?}; those that it has: {1}")]
    UnknownVolume(String, String),
    #[error(
        "the package has several further disks {0:?}: name the file, or the identifier, of one"
    )]
    AmbiguousVolume(String),
    #[error("claim {0:?} is given for two disks of the package")]
    SameClaim(String),
    #[error("{0} is given two claims")]
    TwoClaims(String),
    #[error("the package has no network {0:?}; those of its NICs: {1}")]
    UnknownNetwork(String, String),
}

/// What the user has chosen.
#[derive(Debug, Default)]
pub(super) struct Choice {
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    pub(super) image: String,
    pub(super) class: Option<String>,
    pub(super) node: Option<String>,
    pub(super) run_strategy: String,
    /// Networks of the package, and the NetworkAttachmentDefinitions for them.
    pub(super) networks: Vec<(String, String)>,
    /// Further disks of the package, by identifiers or files, and the claims for them.
    pub(super) volumes: Vec<(String, String)>,
    pub(super) keeps_macs: bool,
    /// The boot disk, by its identifier or its file.
    pub(super) boot_disk: Option<String>,
}

/// A machine, and the file that becomes its disk.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) machine: Value,
    pub(super) file: FileReference,
    pub(super) report: Report,
}

/// A disk that the hardware has.
#[derive(Debug, Clone, Copy)]
struct Attached<'a> {
    item: &'a Item,
    disk: Option<&'a DiskEntry>,
    file: Option<&'a FileReference>,
}

impl Plan {
    pub(super) fn new(package: &Description, choice: &Choice) -> Result<Self, PlanError> {
        let mut report = Report::default();
        let mut spec = Map::new();
        let runs = json!(choice.run_strategy);
        spec.insert("runStrategy".into(), runs);
        let image = json!({"kind": "VirtualMachineImage", "name": choice.image});
        spec.insert("image".into(), image);
        size(package, choice, &mut spec, &mut report)?;
        let attached = attached(package);
        let boot = boot(&attached, choice)?;
        let others = volumes::of_others(&attached, boot, choice, &mut report)?;
        spec.extend(others.map(|volumes| ("volumes".to_owned(), volumes)));
        let file = disk(package, &attached[boot], &mut spec, &mut report)?;
        let network = devices::network(package, choice, &mut report)?;
        spec.extend(network.map(|network| ("network".to_owned(), network)));
        if let Some(node) = &choice.node {
            let selector = json!({"kubernetes.io/hostname": node});
            spec.insert("nodeSelector".into(), selector);
        }
        devices::firmware(package, &mut spec, &mut report);
        devices::others(package, &mut report);
        let mut metadata = Map::new();
        metadata.insert("name".into(), json!(choice.name));
        if let Some(namespace) = &choice.namespace {
            metadata.insert("namespace".into(), json!(namespace));
        }
        let machine = json!({
            "apiVersion": format!("{}/{}", crds::GROUP, crds::VERSION),
            "kind": "VirtualMachine",
            "metadata": metadata,
            "spec": spec,
        });
        Ok(Self {
            machine,
            file,
            report,
        })
    }
}

/// CPUs and memory, or the class in their place.
fn size(
    package: &Description,
    choice: &Choice,
    spec: &mut Map<String, Value>,
    report: &mut Report,
) -> Result<(), PlanError> {
    let hardware = &package.hardware;
    if let Some(class) = &choice.class {
        spec.insert("className".into(), json!(class));
        let text = format!("the class {class} counts");
        report.add(Fate::Changed, "CPUs and memory", text);
        return Ok(());
    }
    let cpus = hardware.processors().ok_or(PlanError::NoSize("CPUs"))?;
    let memory = hardware.memory()?.ok_or(PlanError::NoSize("memory"))?;
    if !CPUS.contains(&cpus) {
        return Err(PlanError::Size(format!("{cpus} CPUs")));
    }
    if !MEMORY.contains(&memory) {
        return Err(PlanError::Size(format!("{memory} bytes of memory")));
    }
    let whole = memory.div_ceil(MIB);
    let hardware = json!({"cpus": cpus, "memory": format!("{whole}Mi")});
    spec.insert("hardware".into(), hardware);
    let text = format!("{cpus} CPUs, {whole} MiB of memory");
    report.add(Fate::Kept, "CPUs and memory", text);
    if !memory.is_multiple_of(MIB) {
        let text = format!("{memory} bytes are rounded up to whole MiB");
        report.add(Fate::Changed, "memory", text);
    }
    Ok(())
}

/// The disks of the machine, in the order of their controllers and places.
fn attached(package: &Description) -> Vec<Attached<'_>> {
    let items = &package.hardware.items;
    let mut all: Vec<_> = package.hardware.of_kind(kind::DISK).collect();
    let controller = |item: &Item| {
        let place = |parent: &String| items.iter().position(|other| other.instance == *parent);
        item.parent.as_ref().and_then(place)
    };
    all.sort_by_key(|item| (controller(item), item.position));
    let found = all.into_iter().map(|item| {
        let resource = item.resource.as_deref().unwrap_or_default();
        let resource = resource.strip_prefix("ovf:").unwrap_or(resource);
        let disk = resource.strip_prefix("/disk/");
        let disk = disk.and_then(|id| package.disks.iter().find(|disk| disk.id == id));
        let file = disk.and_then(|disk| disk.file.as_deref());
        let file = file.or_else(|| resource.strip_prefix("/file/"));
        let file = file.and_then(|id| package.files.iter().find(|file| file.id == id));
        Attached { item, disk, file }
    });
    found.collect()
}

/// The place of the disk that the machine boots from: the first with content, unless the user chooses.
fn boot(all: &[Attached<'_>], choice: &Choice) -> Result<usize, PlanError> {
    let Some(name) = &choice.boot_disk else {
        let first = all.iter().position(|one| one.file.is_some());
        return first.ok_or(PlanError::NoDisk);
    };
    let is_it = |one: &Attached<'_>| one.file.is_some() && one.is_called(name);
    all.iter().position(is_it).ok_or_else(|| {
        let files = all.iter().filter_map(|one| one.file);
        let names: Vec<_> = files.map(|file| file.href.as_str()).collect();
        PlanError::UnknownDisk(shown(name), shown(&names.join(", ")))
    })
}

/// The boot disk.
fn disk(
    package: &Description,
    chosen: &Attached<'_>,
    spec: &mut Map<String, Value>,
    report: &mut Report,
) -> Result<FileReference, PlanError> {
    let file = chosen.file.ok_or(PlanError::NoDisk)?;
    if chosen.disk.is_some_and(|disk| disk.has_parent) {
        return Err(PlanError::Parent(shown(&name(chosen))));
    }
    if file.is_chunked {
        return Err(PlanError::Chunks(shown(&file.href)));
    }
    let capacity = chosen.disk.and_then(|disk| disk.capacity);
    let capacity = capacity.filter(|bytes| *bytes > 0);
    let mut text = "it becomes the root disk".to_owned();
    if let Some(bytes) = capacity {
        let size = quantity(bytes);
        text = format!("{text}, of {size}");
        spec.insert("bootDiskCapacity".into(), json!(size));
    }
    report.add(Fate::Kept, &name(chosen), text);
    let controller = package.hardware.controller(chosen.item);
    let model = controller.map(|item| item.model.as_deref().unwrap_or(&item.name));
    if let Some(model) = model.filter(|model| !devices::is_virtio(model)) {
        let text = "the disk is a virtio disk: the guest needs the driver to boot";
        report.add(Fate::Changed, &format!("controller {model}"), text);
    }
    Ok(file.clone())
}

impl Attached<'_> {
    /// Whether a user means it: by its identifier, or its file.
    fn is_called(&self, name: &str) -> bool {
        let by_id = self.disk.is_some_and(|disk| disk.id == name);
        by_id || self.file.is_some_and(|file| file.href == name)
    }
}

/// What a user calls a disk.
fn name(one: &Attached<'_>) -> String {
    let disk = one.disk.map(|disk| disk.id.as_str());
    let name = one.file.map(|file| file.href.as_str()).or(disk);
    format!("disk {}", name.unwrap_or(&one.item.name))
}

/// Bytes in the largest unit that has a whole number of them.
fn quantity(bytes: u64) -> String {
    let units = [("Gi", 1 << 30), ("Mi", MIB), ("Ki", 1 << 10)];
    let unit = units.iter().find(|(_, unit)| bytes.is_multiple_of(*unit));
    match unit {
        Some((name, unit)) => format!("{}{name}", bytes / unit),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests;
