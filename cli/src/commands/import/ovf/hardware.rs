//! The hardware section of an OVF descriptor.
//!
//! Invariant: of items with one identifier the last one that the configuration has counts; those of
//! other configurations, and bounds of values, are skipped.
//! Failure: [`OvfError`] for a size that cannot be read.

use super::super::shown;
use super::super::xml::Element;
use super::OvfError;

/// Numbers of CIM for kinds of devices.
pub(in crate::commands::import) mod kind {
    pub(in crate::commands::import) const PROCESSOR: u16 = 3;
    pub(in crate::commands::import) const MEMORY: u16 = 4;
    pub(in crate::commands::import) const ETHERNET: u16 = 10;
    pub(in crate::commands::import) const DISK: u16 = 17;
    /// Controllers of disks.
    pub(in crate::commands::import) const CONTROLLERS: [u16; 5] = [5, 6, 7, 8, 20];
}

/// A device, or an amount of something.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::commands::import) struct Item {
    /// The number of its kind.
    pub(in crate::commands::import) kind: u16,
    pub(in crate::commands::import) instance: String,
    pub(in crate::commands::import) name: String,
    /// Model.
    pub(in crate::commands::import) model: Option<String>,
    /// Identifier of its controller, and its place there.
    pub(in crate::commands::import) parent: Option<String>,
    pub(in crate::commands::import) position: Option<u32>,
    pub(in crate::commands::import) quantity: Option<u64>,
    pub(in crate::commands::import) units: String,
    /// What of the package it uses.
    pub(in crate::commands::import) resource: Option<String>,
    pub(in crate::commands::import) network: Option<String>,
    pub(in crate::commands::import) address: Option<String>,
    /// Whether it has a reservation, a limit or a weight.
    pub(in crate::commands::import) has_share: bool,
    pub(in crate::commands::import) cores_per_socket: Option<String>,
}

/// All of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::commands::import) struct Hardware {
    /// Such as `vmx-19` or `virtualbox-2.2`.
    pub(in crate::commands::import) version: Option<String>,
    pub(in crate::commands::import) items: Vec<Item>,
}

impl Hardware {
    pub(super) fn read(section: &Element, configuration: Option<&str>) -> Self {
        let mut items: Vec<Item> = Vec::new();
        for element in &section.children {
            let is_item = ["Item", "StorageItem", "EthernetPortItem"];
            if !is_item.contains(&element.name.as_str()) || !counts(element, configuration) {
                continue;
            }
            let item = item(element);
            let same = items
                .iter_mut()
                .find(|old| !item.instance.is_empty() && old.instance == item.instance);
            match same {
                Some(old) => *old = item,
                None => items.push(item),
            }
        }
        let version = section
            .first("System")
            .and_then(|system| system.text_of("VirtualSystemType"));
        Self {
            version: version.map(str::to_owned),
            items,
        }
    }

    pub(in crate::commands::import) fn of_kind(&self, kind: u16) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(move |item| item.kind == kind)
    }

    /// The controller of a device.
    pub(in crate::commands::import) fn controller(&self, item: &Item) -> Option<&Item> {
        let parent = item.parent.as_ref()?;
        self.items.iter().find(|other| other.instance == *parent)
    }

    /// Bytes of memory; none where the package has no memory.
    pub(in crate::commands::import) fn memory(&self) -> Result<Option<u64>, OvfError> {
        let mut sum: Option<u64> = None;
        for item in self.of_kind(kind::MEMORY) {
            let what = format!("the memory {:?}", shown(&item.name));
            let value = item.quantity.map_or(String::new(), |n| n.to_string());
            if item.units.is_empty() {
                return Err(OvfError::Bytes { what, value });
            }
            let part = bytes(&what, &value, &item.units)?;
            sum = Some(sum.unwrap_or(0).saturating_add(part));
        }
        Ok(sum)
    }

    /// Number of virtual CPUs; none where the package has none.
    pub(in crate::commands::import) fn processors(&self) -> Option<u64> {
        let all = self.of_kind(kind::PROCESSOR).filter_map(|i| i.quantity);
        all.reduce(u64::saturating_add)
    }
}

/// Whether an item is one of this configuration, and no bound of another one.
fn counts(element: &Element, configuration: Option<&str>) -> bool {
    let bound = element.attribute("bound").unwrap_or("normal");
    let of = element.attribute("configuration");
    let is_of_it = of.is_none_or(|all| {
        let mut all = all.split_whitespace();
        configuration.is_some_and(|chosen| all.any(|one| one == chosen))
    });
    bound == "normal" && is_of_it
}

fn item(element: &Element) -> Item {
    let text = |name: &str| element.text_of(name).map(str::to_owned);
    let shares = ["Reservation", "Limit", "Weight"];
    let has = |name: &&str| element.text_of(name).is_some_and(|value| value != "0");
    Item {
        kind: element
            .text_of("ResourceType")
            .and_then(|text| text.parse().ok())
            .unwrap_or(0),
        instance: text("InstanceID").unwrap_or_default(),
        name: text("ElementName").unwrap_or_default(),
        model: text("ResourceSubType"),
        parent: text("Parent"),
        position: element
            .text_of("AddressOnParent")
            .and_then(|text| text.parse().ok()),
        quantity: element
            .text_of("VirtualQuantity")
            .and_then(|text| text.parse().ok()),
        units: text("AllocationUnits").unwrap_or_default(),
        resource: text("HostResource"),
        network: text("Connection"),
        address: text("Address"),
        has_share: shares.iter().any(has),
        cores_per_socket: text("CoresPerSocket"),
    }
}

/// An amount in units such as `byte * 2^20`, `MegaBytes` or, without units, bytes.
pub(super) fn bytes(what: &str, value: &str, units: &str) -> Result<u64, OvfError> {
    let amount: Option<u64> = value.trim().parse().ok();
    let amount = amount.zip(factor(units));
    let product = amount.and_then(|(amount, factor)| amount.checked_mul(factor));
    product.ok_or_else(|| OvfError::Bytes {
        what: what.to_owned(),
        value: shown(format!("{value} {units}").trim()),
    })
}

/// How many bytes a unit is.
fn factor(units: &str) -> Option<u64> {
    let units: String = units.split_whitespace().collect();
    let units = units.to_ascii_lowercase();
    match units.as_str() {
        "" | "byte" | "bytes" | "b" => return Some(1),
        "kilobytes" | "kb" | "kib" => return Some(1 << 10),
        "megabytes" | "mb" | "mib" => return Some(1 << 20),
        "gigabytes" | "gb" | "gib" => return Some(1 << 30),
        "terabytes" | "tb" | "tib" => return Some(1 << 40),
        _ => {}
    }
    let factors = units.strip_prefix("byte*")?;
    factors.split('*').try_fold(1_u64, |product, factor| {
        let number = match factor.split_once('^') {
            Some((base, power)) => {
                let power = power.parse().ok()?;
                base.parse::<u64>().ok()?.checked_pow(power)?
            }
            None => factor.parse().ok()?,
        };
        product.checked_mul(number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_all_programs_are_read() {
        let read = |value, units| bytes("it", value, units).ok();
        assert_eq!(read("2", "byte * 2^20"), Some(2 << 20));
        assert_eq!(read("2", "byte*10^6"), Some(2_000_000));
        assert_eq!(read("2", "byte * 1024 * 1024"), Some(2 << 20));
        assert_eq!(read(" 512 ", "MegaBytes"), Some(512 << 20));
        assert_eq!(read("7", ""), Some(7));
        for (value, units) in [
            ("", "byte"),
            ("-1", "byte"),
            ("1.5", "MegaBytes"),
            ("1", "hertz * 10^6"),
            ("1", "byte * 2^64"),
            ("1", "byte * 2^99999999999"),
            ("18446744073709551615", "byte * 2^20"),
            ("1", "byte *"),
        ] {
            assert_eq!(read(value, units), None, "{value} {units}");
        }
    }
}
