//! What an OVF descriptor says of its machine.
//!
//! Invariant: a value that cannot be read is an error or stays as text, and is never taken for another
//! one. What is not read is in `ignored`, by name.
//! Failure: [`OvfError`].

use super::shown;
use super::xml::{Element, XmlError};

mod hardware;

pub(super) use hardware::{Hardware, Item, kind};

/// Why a descriptor is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum OvfError {
    #[error("failed to read the descriptor")]
    Xml(#[from] XmlError),
    #[error("the descriptor is no OVF envelope")]
    NoEnvelope,
    #[error("the package has {0} machines: only one machine can be imported from a package")]
    Machines(usize),
    #[error("the machine has no VirtualHardwareSection")]
    NoHardware,
    #[error("{what} is {value:?}, which is no number of bytes")]
    Bytes { what: String, value: String },
    #[error("the package requires the section {0:?}, which is not supported")]
    Required(String),
    #[error("the package has no configuration {0:?}; those that it has: {1}")]
    Configuration(String, String),
}

/// A file of the package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileReference {
    pub(super) id: String,
    pub(super) href: String,
    /// As the descriptor says.
    pub(super) size: Option<u64>,
    pub(super) compression: Option<String>,
    pub(super) is_chunked: bool,
}

/// A disk of the package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DiskEntry {
    pub(super) id: String,
    /// Of the file with its content; without it the disk is empty.
    pub(super) file: Option<String>,
    /// In bytes.
    pub(super) capacity: Option<u64>,
    pub(super) has_parent: bool,
}

/// A package of one machine.
#[derive(Debug, Default)]
pub(super) struct Description {
    pub(super) files: Vec<FileReference>,
    pub(super) disks: Vec<DiskEntry>,
    /// Name of the operating system.
    pub(super) system: Option<String>,
    /// `bios` or `efi`, where the package says it.
    pub(super) firmware: Option<String>,
    pub(super) has_secure_boot: bool,
    pub(super) hardware: Hardware,
    /// Keys of properties that a guest expects to be given.
    pub(super) properties: Vec<String>,
    pub(super) has_license: bool,
    /// What the package has besides.
    pub(super) ignored: Vec<String>,
}

impl Description {
    /// Reads a descriptor; the configuration is the package's default if none is named.
    pub(super) fn parse(text: &str, configuration: Option<&str>) -> Result<Self, OvfError> {
        let envelope = Element::parse(text)?;
        if envelope.name != "Envelope" {
            return Err(OvfError::NoEnvelope);
        }
        let machine = machine(&envelope)?;
        let chosen = chosen(&envelope, configuration)?;
        let mut description = Self::default();
        for child in &envelope.children {
            match child.name.as_str() {
                "References" => description.files = child.all("File").map(file).collect(),
                "DiskSection" => {
                    let disks = child.all("Disk").map(disk).collect::<Result<_, _>>();
                    description.disks = disks?;
                }
                "NetworkSection" | "DeploymentOptionSection" | "Strings" => {}
                "VirtualSystem" | "VirtualSystemCollection" => {}
                _ => description.other(child)?,
            }
        }
        let mut sections = machine.all("VirtualHardwareSection");
        let first = sections.next().ok_or(OvfError::NoHardware)?;
        if sections.next().is_some() {
            description.ignored.push("further hardware sections".into());
        }
        description.hardware = Hardware::read(first, chosen.as_deref());
        description.settings(first);
        for child in &machine.children {
            match child.name.as_str() {
                "Info" | "Name" | "VirtualHardwareSection" => {}
                "OperatingSystemSection" => description.system = system(child),
                // Of VirtualBox.
                "Machine" => description.of_virtualbox(child),
                _ => description.other(child)?,
            }
        }
        Ok(description)
    }

    /// A section whose content is not taken over.
    fn other(&mut self, section: &Element) -> Result<(), OvfError> {
        match section.name.as_str() {
            "ProductSection" => {
                let key = |property: &Element| property.attribute("key").map(str::to_owned);
                self.properties
                    .extend(section.all("Property").filter_map(key));
            }
            "EulaSection" => self.has_license = true,
            name => {
                let is_known = KNOWN.contains(&name);
                if section.attribute("required") == Some("true") && !is_known {
                    return Err(OvfError::Required(shown(name)));
                }
                self.ignored.push(name.to_owned());
            }
        }
        Ok(())
    }

    /// Settings of VMware in its own elements.
    fn settings(&mut self, hardware: &Element) {
        for config in hardware.all("Config") {
            let value = config.attribute("value").unwrap_or_default();
            match config.attribute("key") {
                Some("firmware") => self.firmware = Some(value.to_ascii_lowercase()),
                Some("bootOptions.efiSecureBootEnabled") => {
                    self.has_secure_boot = value.eq_ignore_ascii_case("true");
                }
                _ => {}
            }
        }
        let others = hardware.all("ExtraConfig").count();
        if others > 0 {
            self.ignored.push(format!("ExtraConfig ({others})"));
        }
    }

    /// VirtualBox repeats the machine in its own form, which also says the firmware.
    fn of_virtualbox(&mut self, machine: &Element) {
        let hardware = machine.first("Hardware");
        let firmware = hardware.and_then(|hardware| hardware.first("Firmware"));
        let kind = firmware.and_then(|firmware| firmware.attribute("type"));
        if let Some(kind) = kind {
            self.firmware = Some(kind.to_ascii_lowercase());
        }
    }

    /// Whether the machine boots by EFI.
    pub(super) fn is_efi(&self) -> bool {
        let firmware = self.firmware.as_deref().unwrap_or_default();
        firmware.starts_with("efi") || firmware.starts_with("uefi")
    }
}

/// Sections that the specification defines and that are not taken over.
const KNOWN: [&str; 6] = [
    "AnnotationSection",
    "InstallSection",
    "StartupSection",
    "ResourceAllocationSection",
    "EnvironmentFilesSection",
    "BootDeviceSection",
];

/// The only machine of a package, perhaps within collections.
fn machine(envelope: &Element) -> Result<&Element, OvfError> {
    let mut open = vec![envelope];
    let mut machines = Vec::new();
    while let Some(element) = open.pop() {
        machines.extend(element.all("VirtualSystem"));
        open.extend(element.all("VirtualSystemCollection"));
    }
    match machines.as_slice() {
        [only] => Ok(only),
        many => Err(OvfError::Machines(many.len())),
    }
}

/// The configuration that counts; none where the package has none.
fn chosen(envelope: &Element, named: Option<&str>) -> Result<Option<String>, OvfError> {
    let section = envelope.first("DeploymentOptionSection");
    let all = section.map(|section| section.all("Configuration").collect());
    let all: Vec<_> = all.unwrap_or_default();
    let id = |one: &Element| one.attribute("id").unwrap_or_default().to_owned();
    if let Some(named) = named {
        if all.iter().any(|one| id(one) == named) {
            return Ok(Some(named.to_owned()));
        }
        let mut ids: Vec<_> = all.iter().take(10).map(|one| id(one)).collect();
        if ids.is_empty() {
            ids.push("none".to_owned());
        }
        return Err(OvfError::Configuration(
            shown(named),
            shown(&ids.join(", ")),
        ));
    }
    let is_default = |one: &&&Element| one.attribute("default") == Some("true");
    let default = all.iter().find(is_default).or_else(|| all.first());
    Ok(default.map(|one| id(one)))
}

fn file(element: &Element) -> FileReference {
    let text = |name: &str| element.attribute(name).map(str::to_owned);
    FileReference {
        id: text("id").unwrap_or_default(),
        href: text("href").unwrap_or_default(),
        size: text("size").and_then(|size| size.trim().parse().ok()),
        compression: text("compression")
            .filter(|kind| !kind.is_empty() && !kind.eq_ignore_ascii_case("identity")),
        is_chunked: element.attribute("chunkSize").is_some(),
    }
}

fn disk(element: &Element) -> Result<DiskEntry, OvfError> {
    let text = |name: &str| element.attribute(name).map(str::to_owned);
    let id = text("diskId").unwrap_or_default();
    let units = text("capacityAllocationUnits").unwrap_or_default();
    let capacity = text("capacity").map(|capacity| {
        let what = format!("the capacity of disk {:?}", shown(&id));
        hardware::bytes(&what, &capacity, &units)
    });
    Ok(DiskEntry {
        capacity: capacity.transpose()?,
        file: text("fileRef").filter(|file| !file.is_empty()),
        has_parent: text("parentRef").is_some_and(|parent| !parent.is_empty()),
        id,
    })
}

/// Such as `Debian GNU/Linux 12 (64-bit)`, else VMware's word for it.
fn system(section: &Element) -> Option<String> {
    let text = section.text_of("Description");
    text.or_else(|| section.attribute("osType"))
        .map(str::to_owned)
}

#[cfg(test)]
pub(super) mod tests;
