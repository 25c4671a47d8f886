//! Makes the files that cloud-init reads.
//!
//! Invariant: the same settings and sources give the same bytes. Text that need not be merged is
//! passed on as it is.
//! Failure: [`GuestDataError`] names source and key.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::form::Form;
use super::json::lines;
use super::source::{Content, Encoding, Source};
use super::{GuestData, GuestFile, Layout, NetworkVersion, UserDataSource, files, keys, yaml};

/// The first line of a map that cloud-init is to take for one.
const HEADER: &str = "#cloud-config\n";
/// What a script of the pod has in place of the commands that make its devices' names.
const MOUNT_SCRIPT: &str = "@virtlet-mount-script@";

/// What the guest is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestName<'a> {
    /// Identity for cloud-init when the pod names none: another one is another first boot.
    pub instance_id: &'a str,
    /// Its host name.
    pub host_name: &'a str,
}

/// What cloud-init finds on its disk. Debug output shows no content.
#[derive(Clone, PartialEq, Eq)]
pub struct CloudData {
    /// The files' names and shape.
    pub layout: Layout,
    /// Meta-data, in JSON.
    pub meta_data: Vec<u8>,
    /// User data.
    pub user_data: Vec<u8>,
    /// Configuration of the network.
    pub network: NetworkData,
    /// Further files of the guest.
    pub files: Vec<GuestFile>,
}

/// Where the configuration of the network comes from.
#[derive(Clone, PartialEq, Eq)]
pub enum NetworkData {
    /// From the pod itself or a source of it; passed on as it is.
    Given(Vec<u8>),
    /// From the pod's network.
    Generated {
        /// Version of the format.
        version: NetworkVersion,
        /// Only DHCP is configured.
        dhcp: bool,
    },
}

/// A source that does not hold what is expected of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GuestDataError {
    /// It was not read yet.
    #[error("{0} has not been read")]
    Unread(Source),
    /// A key is missing.
    #[error("{of} has no key {key}: add it, or name another key")]
    NoKey {
        /// The source.
        of: Source,
        /// The key.
        key: String,
    },
    /// A value is not what it should be.
    #[error("key {key} of {of}: {reason}")]
    Value {
        /// The source.
        of: Source,
        /// The key.
        key: String,
        /// What is wrong, without repeating it.
        reason: String,
    },
}

pub(super) type Sources = BTreeMap<Source, Content>;

impl GuestData {
    /// The files, from the settings and the content of [`Self::sources`].
    ///
    /// # Errors
    ///
    /// [`GuestDataError`] for a source that is missing or unfit.
    pub fn assemble(
        &self,
        guest: &GuestName<'_>,
        sources: &Sources,
    ) -> Result<CloudData, GuestDataError> {
        let files = self.files_source.as_ref();
        Ok(CloudData {
            layout: self.layout,
            meta_data: self.meta_data(guest, sources)?,
            user_data: self.user_data(sources)?,
            network: self.network(sources)?,
            files: files.map_or(Ok(Vec::new()), |source| files::from_source(source, sources))?,
        })
    }

    /// Whether the network configuration comes from the pod's network, with all of its addresses.
    pub fn has_addresses(&self) -> bool {
        self.network_config.is_none() && self.network_source.is_none() && !self.force_dhcp
    }

    /// Whether the network configuration can have a search list: OpenStack's shape cannot.
    pub fn has_searches(&self) -> bool {
        !(self.layout == Layout::ConfigDrive && self.has_addresses())
    }

    fn network(&self, all: &Sources) -> Result<NetworkData, GuestDataError> {
        if let Some((of, key)) = &self.network_source {
            let written = text(of, key, value(all, of, key)?)?;
            let map = yaml::map(written).and_then(|map| {
                check_network(self.layout, &map)?;
                Ok(map)
            });
            let map = map.map_err(|reason| unfit(of, key, reason))?;
            return Ok(self.given_network(written, &map));
        }
        Ok(match &self.network_config {
            None => NetworkData::Generated {
                version: self.network_version,
                dhcp: self.force_dhcp,
            },
            Some(own) => self.given_network(&own.text, &own.map),
        })
    }

    fn given_network(&self, text: &str, map: &Map<String, Value>) -> NetworkData {
        NetworkData::Given(match self.layout {
            Layout::NoCloud => text.as_bytes().to_vec(),
            Layout::ConfigDrive => lines(&Value::Object(map.clone())).into_bytes(),
        })
    }

    fn meta_data(&self, guest: &GuestName<'_>, all: &Sources) -> Result<Vec<u8>, GuestDataError> {
        let id = self.instance_id.as_deref().unwrap_or(guest.instance_id);
        let mut map = Map::new();
        match self.layout {
            Layout::NoCloud => {
                map.insert("instance-id".to_owned(), json!(id));
                map.insert("local-hostname".to_owned(), json!(guest.host_name));
            }
            Layout::ConfigDrive => {
                map.insert("uuid".to_owned(), json!(id));
                map.insert("hostname".to_owned(), json!(guest.host_name));
                map.insert("name".to_owned(), json!(guest.host_name));
            }
        }
        let mut ssh_keys = match self.used_ssh_source() {
            Some((of, key)) => keys(text(of, key, value(all, of, key)?)?),
            None => Vec::new(),
        };
        ssh_keys.extend(self.ssh_keys.iter().cloned());
        if !ssh_keys.is_empty() {
            match self.layout {
                Layout::NoCloud => map.insert("public-keys".to_owned(), json!(ssh_keys)),
                Layout::ConfigDrive => map.insert("public_keys".to_owned(), numbered(ssh_keys)),
            };
        }
        map.extend(self.meta_data.clone());
        Ok(lines(&Value::Object(map)).into_bytes())
    }

    fn user_data(&self, all: &Sources) -> Result<Vec<u8>, GuestDataError> {
        if let Some(script) = &self.script {
            return Ok(script.clone().into_bytes());
        }
        let of = match self.used_source() {
            Some(UserDataSource::Key(of, key, encoding)) => {
                let text = decode(of, key, value(all, of, key)?, *encoding)?;
                check(&text).map_err(|reason| unfit(of, key, reason))?;
                return Ok(text);
            }
            Some(UserDataSource::Map(of)) => of,
            None => return Ok(self.own_user_data().into_bytes()),
        };
        let mut map = Map::new();
        for (key, value) in &content(all, of)?.0 {
            let parsed = yaml::value(text(of, key, value)?);
            let parsed = parsed.map_err(|reason| unfit(of, key, reason))?;
            map.insert(key.clone(), parsed);
        }
        if let Some(own) = &self.user_data {
            yaml::merge(&mut map, own.map.clone().unwrap_or_default());
        }
        // Every text in JSON is one in YAML, too, and leaves no doubt about what is a number.
        Ok(format!("{HEADER}{}", lines(&Value::Object(map))).into_bytes())
    }

    fn own_user_data(&self) -> String {
        let given = self.user_data.as_ref().filter(|own| own.has_values);
        // To some versions of cloud-init the header alone is an error.
        let text = given.map_or("{}\n", |own| own.text.as_str());
        match Form::detect(text.as_bytes()) {
            Form::Map | Form::Processed => text.to_owned(),
            Form::Empty | Form::Ignored(_) => format!("{HEADER}{text}"),
        }
    }
}

pub(super) fn content<'a>(all: &'a Sources, of: &Source) -> Result<&'a Content, GuestDataError> {
    all.get(of)
        .ok_or_else(|| GuestDataError::Unread(of.clone()))
}

fn value<'a>(all: &'a Sources, of: &Source, key: &str) -> Result<&'a [u8], GuestDataError> {
    let value = content(all, of)?.0.get(key);
    let of = of.clone();
    let key = key.to_owned();
    value
        .map(Vec::as_slice)
        .ok_or(GuestDataError::NoKey { of, key })
}

pub(super) fn text<'a>(of: &Source, key: &str, value: &'a [u8]) -> Result<&'a str, GuestDataError> {
    let text = std::str::from_utf8(value);
    text.map_err(|_| unfit(of, key, "this is no text".to_owned()))
}

/// Refuses what says that it is a map for cloud-init, and is not.
pub(super) fn check(user_data: &[u8]) -> Result<(), String> {
    match std::str::from_utf8(user_data) {
        Ok(text) if is_map(text) => yaml::check_map(text).map(drop),
        _ => Ok(()),
    }
}

/// Whether cloud-init processes a text that is no map: a template, an archive, several parts.
pub(super) fn is_other_form(text: &str) -> bool {
    Form::detect(text.as_bytes()) == Form::Processed
}

/// Whether user data are a map for cloud-init, by their beginning.
fn is_map(text: &str) -> bool {
    Form::detect(text.as_bytes()) == Form::Map
}

/// Refuses a network configuration that the layout's data source does not read.
pub(super) fn check_network(layout: Layout, map: &Map<String, Value>) -> Result<(), String> {
    match layout {
        Layout::ConfigDrive if map.contains_key("version") => Err(
            "a config drive has OpenStack's network data: \"links\", \"networks\" and \"services\""
                .to_owned(),
        ),
        _ => Ok(()),
    }
}

/// Names of keys do not matter to OpenStack's readers.
fn numbered(keys: Vec<String>) -> Value {
    let each = keys.into_iter().enumerate();
    each.map(|(n, key)| (format!("key-{n}"), Value::String(key)))
        .collect::<Map<_, _>>()
        .into()
}

pub(super) fn decode(
    of: &Source,
    key: &str,
    value: &[u8],
    encoding: Encoding,
) -> Result<Vec<u8>, GuestDataError> {
    if encoding == Encoding::Plain {
        return Ok(value.to_vec());
    }
    let dense: Vec<u8> = value
        .iter()
        .copied()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    let decoded = STANDARD.decode(dense);
    decoded.map_err(|_| unfit(of, key, "this is no base64".to_owned()))
}

/// Why cloud-init ignores these user data, if it does. Other programs of a guest may read them.
pub fn ignored_user_data(user_data: &[u8]) -> Option<&'static str> {
    match Form::detect(user_data) {
        Form::Ignored(reason) => Some(reason),
        Form::Map | Form::Processed | Form::Empty => None,
    }
}

pub(super) fn unfit(of: &Source, key: &str, reason: String) -> GuestDataError {
    let of = of.clone();
    let key = key.to_owned();
    GuestDataError::Value { of, key, reason }
}

impl CloudData {
    /// Why cloud-init ignores the user data, if it does.
    pub fn ignored_user_data(&self) -> Option<&'static str> {
        ignored_user_data(&self.user_data)
    }

    /// Puts a script in the place of `@virtlet-mount-script@` in user data that are no map: a script,
    /// a hook of the boot, several parts.
    pub fn insert_mount_script(&mut self, script: &str) {
        let Ok(text) = std::str::from_utf8(&self.user_data) else {
            return;
        };
        if !is_map(text) && text.contains(MOUNT_SCRIPT) {
            self.user_data = text.replace(MOUNT_SCRIPT, script).into_bytes();
        }
    }
}

impl fmt::Debug for CloudData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} {{ meta-data: {} bytes, user-data: {} bytes, network: {:?}, files: {:?} }}",
            self.layout,
            self.meta_data.len(),
            self.user_data.len(),
            self.network,
            self.files
        )
    }
}

impl fmt::Debug for NetworkData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given(text) => write!(f, "{} bytes", text.len()),
            Self::Generated { version, dhcp } => {
                write!(f, "generated, {version:?}, only DHCP: {dhcp}")
            }
        }
    }
}
