//! NICs and the other devices and settings of a package.
//!
//! Invariant: the first interface of a machine is on the pod network; others are on the networks that
//! the user gives for those of the package.
//! Failure: a network that the package does not have.

use serde_json::{Map, Value, json};

use super::super::ovf::{Description, Item, kind};
use super::super::report::{Fate, Report};
use super::super::shown;
use super::{Choice, PlanError};

/// Most interfaces of a machine.
const INTERFACES: usize = 16;

/// Whether a model of a device is one that guests use by virtio.
pub(super) fn is_virtio(model: &str) -> bool {
    model.to_ascii_lowercase().starts_with("virtio")
}

/// The machine's network; none where the default is right.
pub(super) fn network(
    package: &Description,
    choice: &Choice,
    report: &mut Report,
) -> Result<Option<Value>, PlanError> {
    let nics: Vec<_> = package.hardware.of_kind(kind::ETHERNET).collect();
    for (named, _) in &choice.networks {
        if !nics.iter().any(|nic| network_of(nic) == *named) {
            let names: Vec<_> = nics.iter().map(|nic| network_of(nic)).collect();
            let names = shown(&names.join(", "));
            return Err(PlanError::UnknownNetwork(shown(named), names));
        }
    }
    if nics.is_empty() {
        let text = "the package has none, and the machine neither";
        report.add(Fate::Kept, "NICs", text);
        return Ok(Some(json!({"disabled": true})));
    }
    let mut interfaces = vec![json!({"name": "eth0"})];
    let mut has_first = false;
    for nic in nics {
        let part = format!("NIC {} on {:?}", nic.name, network_of(nic));
        let network = network_of(nic);
        let given = choice.networks.iter().find(|(name, _)| *name == network);
        let Some(interface) = interface(given, &mut has_first, &mut interfaces) else {
            let text = "the first NIC is on the pod network: give this one a network by --network NAME=NETWORK";
            report.add(Fate::LeftOut, &part, text);
            continue;
        };
        let on = match given {
            Some((_, network)) => format!("it is on {}", shown(network)),
            None => "it is on the pod network".to_owned(),
        };
        address(nic, choice, interface, &part, report);
        report.add(Fate::Changed, &part, on);
        let model = nic.model.as_deref().filter(|model| !is_virtio(model));
        if let Some(model) = model {
            let text = format!("model {}: it is a virtio NIC", shown(model));
            report.add(Fate::Changed, &part, text);
        }
    }
    if !has_first {
        let text = "the machine has one NIC more, its first one, on the pod network";
        report.add(Fate::Note, "NICs", text);
    }
    let is_default = interfaces.len() == 1 && interfaces[0].get("macAddr").is_none();
    Ok((!is_default).then(|| json!({"interfaces": interfaces})))
}

/// The network of the package that a NIC is on.
fn network_of(nic: &Item) -> String {
    nic.network.clone().unwrap_or_default()
}

/// The interface that a NIC becomes, if it can be one.
fn interface<'a>(
    given: Option<&(String, String)>,
    has_first: &mut bool,
    interfaces: &'a mut Vec<Value>,
) -> Option<&'a mut Value> {
    if let Some((_, network)) = given {
        let place = interfaces.len();
        if place == INTERFACES {
            return None;
        }
        interfaces.push(json!({"name": format!("eth{place}"), "networkRef": network}));
        return interfaces.last_mut();
    }
    if *has_first {
        return None;
    }
    *has_first = true;
    interfaces.first_mut()
}

/// Two machines with one address would disturb each other, so that it is kept only on request.
fn address(nic: &Item, choice: &Choice, interface: &mut Value, part: &str, report: &mut Report) {
    let Some(address) = nic.address.as_deref() else {
        return;
    };
    match mac(address) {
        Some(mac) if choice.keeps_macs => {
            let text = format!("its MAC address is {mac}");
            report.add(Fate::Kept, part, text);
            interface["macAddr"] = json!(mac);
        }
        Some(_) => {
            let text = "it has a new MAC address: --keep-mac keeps the one of the package";
            report.add(Fate::Changed, part, text);
        }
        None => {
            let text = format!("{:?} is no MAC address of a NIC", shown(address));
            report.add(Fate::LeftOut, part, text);
        }
    }
}

/// An address of one NIC, with colons; VirtualBox writes it without.
fn mac(text: &str) -> Option<String> {
    let digits: String = text.chars().filter(|c| !matches!(c, ':' | '-')).collect();
    let is_hex = digits.len() == 12 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hex {
        return None;
    }
    let digits = digits.to_ascii_lowercase();
    let first = u8::from_str_radix(&digits[..2], 16).ok()?;
    let is_group = first & 1 == 1;
    let is_empty = digits.bytes().all(|byte| byte == b'0');
    let pairs: Vec<_> = (0..6).map(|n| &digits[2 * n..2 * n + 2]).collect();
    (!is_group && !is_empty).then(|| pairs.join(":"))
}

/// What boots the guest. The machine has new variables of the firmware.
pub(super) fn firmware(package: &Description, spec: &mut Map<String, Value>, report: &mut Report) {
    if package.is_efi() {
        spec.insert("firmware".into(), json!("UEFI"));
        let text = "UEFI, without the variables of the package: the boot loader must be the file \
                    \\EFI\\BOOT\\BOOTX64.EFI, too";
        report.add(Fate::Kept, "firmware", text);
    } else {
        report.add(Fate::Kept, "firmware", "BIOS");
    }
    if package.has_secure_boot {
        let text = "the firmware of machines does not verify what it boots";
        report.add(Fate::LeftOut, "secure boot", text);
    }
}

/// What machines do not have.
pub(super) fn others(package: &Description, report: &mut Report) {
    if let Some(version) = &package.hardware.version {
        let text = "the machine type is that of the node, q35";
        report.add(Fate::Changed, &format!("hardware {version}"), text);
    }
    let system = package.system.as_deref().unwrap_or_default();
    if system.to_ascii_lowercase().contains("windows") {
        let text = "install the virtio drivers for disk and network in the guest before the export";
        report.add(Fate::Note, &format!("guest {system}"), text);
    }
    for item in &package.hardware.items {
        device(item, report);
    }
    if !package.properties.is_empty() {
        let keys: Vec<_> = package.properties.iter().map(String::as_str).collect();
        let part = format!("properties {}", keys.join(", "));
        let text = "no program gives them to the guest: use spec.bootstrap.cloudInit";
        report.add(Fate::LeftOut, &part, text);
    }
    if package.has_license {
        let text = "its descriptor has a license agreement (EulaSection): read it before you use the machine";
        report.add(Fate::Note, "license", text);
    }
    for section in &package.ignored {
        report.add(Fate::LeftOut, section, "it is not supported");
    }
}

/// Says what becomes of a device that is no disk and no NIC.
fn device(item: &Item, report: &mut Report) {
    if let Some(cores) = &item.cores_per_socket {
        let part = format!("{cores} cores per socket");
        report.add(Fate::LeftOut, &part, "the node chooses sockets and cores");
    }
    if item.has_share {
        let part = format!("reservation or limit of {}", item.name);
        let text = "a VirtualMachineClass has requests and limits in policies.resources";
        report.add(Fate::LeftOut, &part, text);
    }
    let is_taken = [kind::PROCESSOR, kind::MEMORY, kind::ETHERNET, kind::DISK];
    if is_taken.contains(&item.kind) || kind::CONTROLLERS.contains(&item.kind) {
        return;
    }
    let what = match item.kind {
        14 => "floppy drive",
        15 | 16 => "CD or DVD drive",
        21 => "serial port",
        22 => "parallel port",
        23 => "USB controller",
        24 => "graphics adapter",
        35 => "sound card",
        _ => "device",
    };
    let text = match item.kind {
        21 => "the machine has a serial console of its own",
        _ => "machines have no such device",
    };
    let name = if item.name.is_empty() {
        format!("of kind {}", item.kind)
    } else {
        item.name.clone()
    };
    report.add(Fate::LeftOut, &format!("{what} {name}"), text);
}
