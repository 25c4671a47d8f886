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
mod source;
#[cfg(test)]
mod tests;
mod yaml;

pub use assemble::{GuestDataError, GuestName, NoCloud};
pub use source::{Content, Source, SourceKind};

use crate::annotations::{AnnotationError, Annotations, Key};
use source::{Encoding, Named};

/// Key of a source of SSH keys when the pod names none.
const AUTHORIZED_KEYS: &str = "authorized_keys";
/// Longest instance id, in bytes.
const MAX_INSTANCE_ID: usize = 128;

/// The guest data settings of a pod that has any.
#[derive(Clone, Default, PartialEq)]
pub struct GuestData {
    instance_id: Option<String>,
    meta_data: Map<String, Value>,
    network_config: Option<String>,
    script: Option<String>,
    user_data: Option<Written>,
    overwrite: bool,
    source: Option<UserDataSource>,
    ssh_keys: Vec<String>,
    ssh_source: Option<(Source, String)>,
}

/// A map as the user wrote it, and what it means.
#[derive(Clone, PartialEq)]
struct Written {
    text: String,
    map: Map<String, Value>,
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
    /// Reads the annotations; `None` when none of them is there.
    ///
    /// # Errors
    ///
    /// [`AnnotationError`] for the first that makes no sense.
    pub fn from_pod(map: &BTreeMap<String, String>) -> Result<Option<Self>, AnnotationError> {
        let given = Annotations::new(map);
        if let Some((_, kind)) = given.raw(Key::SeedType)
            && !kind.eq_ignore_ascii_case("nocloud")
        {
            let reason = "only \"nocloud\" is possible, which cloud-init looks for first";
            return Err(given.refuse(Key::SeedType, reason.to_owned()));
        }
        let data = Self {
            instance_id: instance_id(given)?,
            meta_data: written(given, Key::MetaData)?.map_or_else(Map::new, |w| w.map),
            network_config: written(given, Key::NetworkConfig)?.map(|w| w.text),
            script: given.text(Key::UserDataScript)?.map(str::to_owned),
            user_data: user_data(given)?,
            overwrite: given.get(Key::UserDataOverwrite)?.unwrap_or_default(),
            source: source(given)?,
            ssh_keys: given.text(Key::SshKeys)?.map(keys).unwrap_or_default(),
            ssh_source: given.get::<Named>(Key::SshKeysSource)?.map(|named| {
                let key = named.key.unwrap_or_else(|| AUTHORIZED_KEYS.to_owned());
                (named.source, key)
            }),
        };
        let default = Self {
            overwrite: data.overwrite,
            ..Self::default()
        };
        Ok((data != default).then_some(data))
    }

    /// The objects that are needed, none that would be ignored.
    pub fn sources(&self) -> BTreeSet<Source> {
        let user_data = self.used_source().map(|source| match source {
            UserDataSource::Map(source) | UserDataSource::Key(source, ..) => source.clone(),
        });
        let ssh = self.used_ssh_source().map(|(source, _)| source.clone());
        user_data.into_iter().chain(ssh).collect()
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

/// A setting that is a YAML map.
fn written(given: Annotations<'_>, key: Key) -> Result<Option<Written>, AnnotationError> {
    let Some(text) = given.text(key)? else {
        return Ok(None);
    };
    let map = yaml::map(text).map_err(|reason| given.refuse(key, reason))?;
    let text = text.to_owned();
    Ok(Some(Written { text, map }))
}

fn user_data(given: Annotations<'_>) -> Result<Option<Written>, AnnotationError> {
    let text = given.text(Key::UserData)?.unwrap_or_default();
    // To YAML the first line of a script is a comment.
    if text.starts_with("#!") {
        let reason = format!(
            "this is a script: it belongs into {}",
            Key::UserDataScript.names().0
        );
        return Err(given.refuse(Key::UserData, reason));
    }
    written(given, Key::UserData)
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
    Ok(Some(match key.or(named.key) {
        Some(key) => UserDataSource::Key(named.source, key, encoding.unwrap_or_default()),
        None => UserDataSource::Map(named.source),
    }))
}

/// The lines of a text that say something.
fn keys(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim);
    lines
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}
