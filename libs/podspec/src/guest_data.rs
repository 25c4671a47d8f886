//! The first-boot data of a pod for its guest, in cloud-init's formats.
//!
//! Invariant: what is parsed can be assembled once its sources are there; nothing shows the texts
//! in debug output.
//! Failure: an [`AnnotationError`] that names the annotation; a source that does not hold what is
//! expected of it is a [`GuestDataError`], which never repeats what the source holds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Map, Value};

mod assemble;
mod files;
mod form;
mod json;
mod layout;
mod source;
mod sysprep;
#[cfg(test)]
mod tests;
pub(crate) mod yaml;

pub use assemble::{CloudData, GuestDataError, GuestName, NetworkData, ignored_user_data};
pub use files::GuestFile;
pub use layout::{Layout, NetworkVersion};
pub use source::{Content, Source, SourceKind};
pub use sysprep::{ANSWER_FILES, AnswerFile};

use crate::annotations::{AnnotationError, Annotations, Key};
use crate::presence::Presence;
use source::{Encoding, Named};

/// Key of a source of SSH keys when the pod names none.
const AUTHORIZED_KEYS: &str = "authorized_keys";
/// Key of a source of the network configuration when the pod names none.
const NETWORK_CONFIG: &str = "network-config";
/// Longest instance id, in bytes.
const MAX_INSTANCE_ID: usize = 128;

/// The guest data settings of a pod.
#[derive(Clone, Default, PartialEq)]
pub struct GuestData {
    layout: Layout,
    network_version: NetworkVersion,
    force_dhcp: bool,
    files_source: Option<Source>,
    instance_id: Option<String>,
    meta_data: Map<String, Value>,
    network_config: Option<Written>,
    network_source: Option<(Source, String)>,
    script: Option<String>,
    user_data: Option<UserData>,
    overwrite: bool,
    source: Option<UserDataSource>,
    ssh_keys: Vec<String>,
    ssh_source: Option<(Source, String)>,
    sysprep: Option<Source>,
}

/// A map as the user wrote it, and what it means.
#[derive(Clone, PartialEq)]
struct Written {
    text: String,
    map: Map<String, Value>,
}

/// User data of the pod itself.
#[derive(Clone, PartialEq)]
struct UserData {
    text: String,
    /// Where they are merged with those of a source; else nothing is known of their values.
    map: Option<Map<String, Value>>,
    /// Whether they have any value.
    has_values: bool,
}

/// Where user data come from.
#[derive(Clone, PartialEq)]
enum UserDataSource {
    /// Every key of the object is one of the user data's.
    Map(Source),
    /// One key is the user data.
    Key(Source, String, Encoding),
}

impl GuestData {
    /// Reads the annotations; `None` when the guest is to have no cloud-init disk.
    ///
    /// # Errors
    ///
    /// [`AnnotationError`] for the first that makes no sense.
    pub fn from_pod(map: &BTreeMap<String, String>) -> Result<Option<Self>, AnnotationError> {
        let given = Annotations::new(map);
        let presence = given.get::<Presence>(Key::CloudInit)?.unwrap_or_default();
        let layout = given.get::<Layout>(Key::SeedType)?.unwrap_or_default();
        let source = source(given)?;
        let data = Self {
            layout,
            network_version: given.get(Key::NetworkVersion)?.unwrap_or_default(),
            force_dhcp: given.get(Key::ForceDhcp)?.unwrap_or_default(),
            files_source: files_source(given)?,
            instance_id: instance_id(given)?,
            meta_data: written(given, Key::MetaData)?.map_or_else(Map::new, |w| w.map),
            network_config: network_config(given, layout)?,
            network_source: network_source(given)?,
            script: script(given)?,
            user_data: user_data(given, source.as_ref())?,
            overwrite: given.get(Key::UserDataOverwrite)?.unwrap_or_default(),
            source,
            ssh_keys: given.text(Key::SshKeys)?.map(keys).unwrap_or_default(),
            ssh_source: given.get::<Named>(Key::SshKeysSource)?.map(|named| {
                let key = named.key.unwrap_or_else(|| AUTHORIZED_KEYS.to_owned());
                (named.source, key)
            }),
            sysprep: None,
        };
        if let Some(sysprep) = sysprep::from_pod(given, &data)? {
            return Ok(Some(sysprep));
        }
        match presence {
            Presence::Auto => Ok(Some(data)),
            Presence::Off if data.is_requested() => {
                let reason = "the pod has other annotations whose data need a cloud-init disk";
                Err(given.refuse(Key::CloudInit, reason.to_owned()))
            }
            Presence::Off => Ok(None),
        }
    }

    /// Whether the guest gets answer files of Windows Setup, on a CD-ROM, and no cloud-init disk.
    pub const fn is_sysprep(&self) -> bool {
        self.sysprep.is_some()
    }

    /// Whether the pod gives data of its own; other settings say only how data are passed on.
    pub fn is_requested(&self) -> bool {
        let default = Self {
            layout: self.layout,
            network_version: self.network_version,
            force_dhcp: self.force_dhcp,
            overwrite: self.overwrite,
            ..Self::default()
        };
        *self != default
    }

    /// The objects that are needed, none that would be ignored.
    pub fn sources(&self) -> BTreeSet<Source> {
        let user_data = self.used_source().map(|source| match source {
            UserDataSource::Map(source) | UserDataSource::Key(source, ..) => source.clone(),
        });
        let ssh = self.used_ssh_source().map(|(source, _)| source.clone());
        let network = self
            .network_source
            .as_ref()
            .map(|(source, _)| source.clone());
        let files = self.files_source.clone().or(self.sysprep.clone());
        let all = user_data.into_iter().chain(ssh).chain(network);
        all.chain(files).collect()
    }

    fn used_source(&self) -> Option<&UserDataSource> {
        let is_replaced = |source: &UserDataSource| {
            let is_map = matches!(source, UserDataSource::Map(_));
            is_map && self.overwrite && self.user_data.is_some()
        };
        let source = self.source.as_ref();
        source.filter(|source| self.script.is_none() && !is_replaced(source))
    }

    fn used_ssh_source(&self) -> Option<&(Source, String)> {
        let is_replaced = self.overwrite && !self.ssh_keys.is_empty();
        self.ssh_source.as_ref().filter(|_| !is_replaced)
    }
}

impl fmt::Debug for GuestData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sources = self.sources();
        f.debug_struct("GuestData")
            .field("sources", &sources)
            .finish_non_exhaustive()
    }
}

fn instance_id(given: Annotations<'_>) -> Result<Option<String>, AnnotationError> {
    let id = given.get::<String>(Key::InstanceId)?;
    let is_usable = |id: &String| {
        (1..=MAX_INSTANCE_ID).contains(&id.len()) && id.chars().all(|c| c.is_ascii_graphic())
    };
    match id {
        Some(id) if !is_usable(&id) => {
            let reason = format!(
                "1 to {MAX_INSTANCE_ID} visible ASCII characters without spaces are allowed"
            );
            Err(given.refuse(Key::InstanceId, reason))
        }
        id => Ok(id),
    }
}

fn network_config(
    given: Annotations<'_>,
    layout: Layout,
) -> Result<Option<Written>, AnnotationError> {
    let written = written(given, Key::NetworkConfig)?;
    let checked = written.as_ref().map_or(Ok(()), |written| {
        assemble::check_network(layout, &written.map)
    });
    checked.map_err(|reason| given.refuse(Key::NetworkConfig, reason))?;
    Ok(written)
}

fn network_source(given: Annotations<'_>) -> Result<Option<(Source, String)>, AnnotationError> {
    let key = Key::NetworkConfigSource;
    let Some(text) = given.text(key)? else {
        return Ok(None);
    };
    let named: Named = text
        .parse()
        .map_err(|reason: &str| given.refuse(key, reason.to_owned()))?;
    if given.raw(Key::NetworkConfig).is_some() {
        let other = Key::NetworkConfig.names().0;
        return Err(given.refuse(key, format!("the pod has {other}, too: use one of them")));
    }
    let of_source = named.key.unwrap_or_else(|| NETWORK_CONFIG.to_owned());
    Ok(Some((named.source, of_source)))
}

fn files_source(given: Annotations<'_>) -> Result<Option<Source>, AnnotationError> {
    match given.get::<Named>(Key::FilesSource)? {
        Some(Named { key: Some(_), .. }) => {
            let reason = "\"configmap/NAME\" or \"secret/NAME\" is needed: all keys are used";
            Err(given.refuse(Key::FilesSource, reason.to_owned()))
        }
        named => Ok(named.map(|named| named.source)),
    }
}

/// A setting that is a YAML map.
fn written(given: Annotations<'_>, key: Key) -> Result<Option<Written>, AnnotationError> {
    let Some(text) = given.text(key)? else {
        return Ok(None);
    };
    let map = yaml::map(text).map_err(|reason| given.refuse(key, reason))?;
    let text = text.to_owned();
    Ok(Some(Written { text, map }))
}

/// Text that is all of the user data; one that says that it is a map has to be one.
fn script(given: Annotations<'_>) -> Result<Option<String>, AnnotationError> {
    let text = given.text(Key::UserDataScript)?;
    let checked = text.map_or(Ok(()), |text| assemble::check(text.as_bytes()));
    checked.map_err(|reason| given.refuse(Key::UserDataScript, reason))?;
    Ok(text.map(str::to_owned))
}

fn user_data(
    given: Annotations<'_>,
    source: Option<&UserDataSource>,
) -> Result<Option<UserData>, AnnotationError> {
    let Some(text) = given.text(Key::UserData)? else {
        return Ok(None);
    };
    // To YAML the first line of a script is a comment.
    if text.starts_with("#!") {
        let reason = format!(
            "this is a script: it belongs into {}",
            Key::UserDataScript.names().0
        );
        return Err(given.refuse(Key::UserData, reason));
    }
    let refused = |reason| given.refuse(Key::UserData, reason);
    let is_merged = matches!(source, Some(UserDataSource::Map(_)));
    let mut map = None;
    let has_values = if is_merged {
        let merged = yaml::map(text).map_err(refused)?;
        let has_values = !merged.is_empty();
        map = Some(merged);
        has_values
    } else if assemble::is_other_form(text) {
        // Passed on as it is.
        true
    } else {
        yaml::check_map(text).map_err(refused)?
    };
    Ok(Some(UserData {
        text: text.to_owned(),
        map,
        has_values,
    }))
}

fn source(given: Annotations<'_>) -> Result<Option<UserDataSource>, AnnotationError> {
    let named = given.get::<Named>(Key::UserDataSource)?;
    let encoding = given.get::<Encoding>(Key::UserDataSourceEncoding)?;
    let key = match given.raw(Key::UserDataSourceKey) {
        Some((_, key)) if !source::is_key(key) => {
            let reason = source::KEY_RULE.to_owned();
            return Err(given.refuse(Key::UserDataSourceKey, reason));
        }
        key => key.map(|(_, key)| key.to_owned()),
    };
    let Some(named) = named else {
        let lonely = [
            (Key::UserDataSourceKey, key.is_some()),
            (Key::UserDataSourceEncoding, encoding.is_some()),
        ];
        return match lonely.into_iter().find(|(_, is_there)| *is_there) {
            Some((key, _)) => {
                let source = Key::UserDataSource.names().0;
                Err(given.refuse(key, format!("it has a meaning only with {source}")))
            }
            None => Ok(None),
        };
    };
    match (key.or(named.key), encoding) {
        (Some(key), encoding) => {
            let encoding = encoding.unwrap_or_default();
            Ok(Some(UserDataSource::Key(named.source, key, encoding)))
        }
        (None, None) => Ok(Some(UserDataSource::Map(named.source))),
        (None, Some(_)) => {
            let key = Key::UserDataSourceKey.names().0;
            let reason = format!("it has a meaning only with {key}, or a source with \"/KEY\"");
            Err(given.refuse(Key::UserDataSourceEncoding, reason))
        }
    }
}

/// The lines of a text that say something.
fn keys(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim);
    lines
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}
