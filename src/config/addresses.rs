//! Settings about where images are fetched from, and what is taken for one.
//!
//! Invariant: a range is written as its text, which parses back to the same range.
//! Failure: a sentence that states what is allowed.

use std::borrow::Cow;
use std::net::IpAddr;

use ipnet::IpNet;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// How private addresses of image servers are treated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PrivateAddresses {
    /// As public ones.
    #[default]
    Allow,
    /// As those that no image server has.
    Refuse,
}

/// How raw image files are treated that do not begin as disks do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RawData {
    /// As disks.
    Allow,
    /// As files that are no disks.
    #[default]
    Refuse,
}

/// An address or a range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AddressRange(IpNet);

impl AddressRange {
    /// The range.
    pub const fn get(&self) -> IpNet {
        self.0
    }
}

impl TryFrom<String> for AddressRange {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let range = text.parse().ok();
        let range = range.or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        range.map(Self).ok_or_else(|| {
            "an address, or a range such as 192.0.2.0/24 or 2001:db8::/32, is allowed".to_owned()
        })
    }
}

impl From<AddressRange> for String {
    fn from(range: AddressRange) -> Self {
        range.0.to_string()
    }
}

impl JsonSchema for AddressRange {
    fn schema_name() -> Cow<'static, str> {
        "AddressRange".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }

    fn inline_schema() -> bool {
        true
    }
}
