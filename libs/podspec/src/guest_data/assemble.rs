//! Makes the files that cloud-init reads.
//!
//! Invariant: the same settings and sources give the same bytes. Text that need not be merged is
//! passed on as it is.
//! Failure: [`GuestDataError`] names source and key.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::source::{Content, Encoding, Source};
use super::{GuestData, UserDataSource, keys, yaml};

/// The first line of a map that cloud-init is to take for one.
const HEADER: &str = "#cloud-config\n";

/// What the guest is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestName<'a> {
    /// Identity for cloud-init when the pod names none: another one is another first boot.
    pub instance_id: &'a str,
    /// Its host name.
    pub host_name: &'a str,
}

/// The files of a NoCloud volume.
#[derive(Clone, PartialEq, Eq)]
pub struct NoCloud {
    /// `meta-data`, in JSON.
    pub meta_data: Vec<u8>,
    /// `user-data`.
    pub user_data: Vec<u8>,
    /// `network-config`, if there is one.
    pub network_config: Option<Vec<u8>>,
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

type Sources = BTreeMap<Source, Content>;

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
    ) -> Result<NoCloud, GuestDataError> {
        Ok(NoCloud {
            meta_data: self.meta_data(guest, sources)?,
            user_data: self.user_data(sources)?,
            network_config: self.network_config.clone().map(String::into_bytes),
        })
    }

    fn meta_data(&self, guest: &GuestName<'_>, all: &Sources) -> Result<Vec<u8>, GuestDataError> {
        let id = self.instance_id.as_deref().unwrap_or(guest.instance_id);
        let mut map = Map::new();
        map.insert("instance-id".to_owned(), json!(id));
        map.insert("local-hostname".to_owned(), json!(guest.host_name));
        let mut ssh_keys = match self.used_ssh_source() {
            Some((of, key)) => keys(text(of, key, value(all, of, key)?)?),
            None => Vec::new(),
        };
        ssh_keys.extend(self.ssh_keys.iter().cloned());
        if !ssh_keys.is_empty() {
            map.insert("public-keys".to_owned(), json!(ssh_keys));
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
                return decode(of, key, value(all, of, key)?, *encoding);
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
            yaml::merge(&mut map, own.map.clone());
        }
        // Every text in JSON is one in YAML, too, and leaves no doubt about what is a number.
        Ok(format!("{HEADER}{}", lines(&Value::Object(map))).into_bytes())
    }

    fn own_user_data(&self) -> String {
        let text = self.user_data.as_ref().map_or("", |own| own.text.as_str());
        let has_header = text.lines().next().map(str::trim_end) == Some(HEADER.trim_end());
        if has_header {
            text.to_owned()
        } else {
            format!("{HEADER}{text}")
        }
    }
}

fn content<'a>(all: &'a Sources, of: &Source) -> Result<&'a Content, GuestDataError> {
    all.get(of)
        .ok_or_else(|| GuestDataError::Unread(of.clone()))
}

fn value<'a>(all: &'a Sources, of: &Source, key: &str) -> Result<&'a [u8], GuestDataError> {
    let value = content(all, of)?.0.get(key);
    let (of, key) = (of.clone(), key.to_owned());
    value
        .map(Vec::as_slice)
        .ok_or(GuestDataError::NoKey { of, key })
}

fn text<'a>(of: &Source, key: &str, value: &'a [u8]) -> Result<&'a str, GuestDataError> {
    let text = std::str::from_utf8(value);
    text.map_err(|_| unfit(of, key, "this is no text".to_owned()))
}

fn decode(
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

fn unfit(of: &Source, key: &str, reason: String) -> GuestDataError {
    let (of, key) = (of.clone(), key.to_owned());
    GuestDataError::Value { of, key, reason }
}

/// JSON that cloud-init's reader of YAML takes for the same: it refuses some characters that are
/// not escaped, and takes others for ends of lines.
fn lines(value: &Value) -> String {
    let mut text = String::new();
    for c in format!("{value:#}\n").chars() {
        match c {
            '\u{7f}'..='\u{9f}'
            | '\u{2028}'
            | '\u{2029}'
            | '\u{feff}'
            | '\u{fffe}'
            | '\u{ffff}' => {
                // Such a character can only be in a string. Writing to a String cannot fail.
                let _ = write!(text, "\\u{:04x}", u32::from(c));
            }
            c => text.push(c),
        }
    }
    text
}

impl fmt::Debug for NoCloud {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let network = self.network_config.as_ref().map_or(0, Vec::len);
        write!(
            f,
            "NoCloud {{ meta-data: {} bytes, user-data: {} bytes, network-config: {network} bytes \
             }}",
            self.meta_data.len(),
            self.user_data.len()
        )
    }
}
