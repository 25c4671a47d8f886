//! Settings of backups.
//!
//! Invariant: a target is written as its text, which parses back to the same target.
//! Failure: a sentence that states what is allowed.

use std::borrow::Cow;
use std::path::Path;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::value::AbsolutePath;

/// The longest name of a target in bytes.
const NAME: usize = 63;

/// Backups of disks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Backup {
    /// Directories that backups are written to, each as `NAME=PATH`, such as `nfs=/mnt/backups/vmlet`. The path is that on
    /// the node (see `shares.host_root`), and exists: use a directory below a mount, so that nothing is written while that is
    /// absent. Objects of the cluster name a target by its name. At most 16.
    pub targets: Vec<BackupTarget>,
}

/// A directory that backups are written to, and its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BackupTarget {
    name: String,
    path: AbsolutePath,
}

impl BackupTarget {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether a target can have a name: it is a part of other names.
pub fn is_target_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let inside = name.bytes().all(|byte| is_part(byte) || byte == b'-');
    let ends = name.bytes().next().is_some_and(is_part) && name.bytes().last().is_some_and(is_part);
    name.len() <= NAME && inside && ends
}

impl TryFrom<String> for BackupTarget {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let refused = || {
            "NAME=PATH is allowed: a name of lower-case letters, digits and hyphens, at most 63, and an absolute path"
                .to_owned()
        };
        let (name, path) = text.split_once('=').ok_or_else(refused)?;
        if !is_target_name(name) {
            return Err(refused());
        }
        Ok(Self {
            name: name.to_owned(),
            path: path.parse()?,
        })
    }
}

impl From<BackupTarget> for String {
    fn from(target: BackupTarget) -> Self {
        format!("{}={}", target.name, target.path)
    }
}

impl JsonSchema for BackupTarget {
    fn schema_name() -> Cow<'static, str> {
        "BackupTarget".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }

    fn inline_schema() -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_name_and_a_path() {
        let read = |text: &str| BackupTarget::try_from(text.to_owned());
        let target = read("nfs-1=/mnt/a=b").unwrap();
        assert_eq!(
            (target.name(), target.path()),
            ("nfs-1", Path::new("/mnt/a=b"))
        );
        assert_eq!(String::from(target), "nfs-1=/mnt/a=b");
        let long = format!("{}=/mnt", "a".repeat(64));
        for odd in [
            "", "nfs", "=/mnt", "-a=/mnt", "a-=/mnt", "A=/mnt", "a/b=/mnt", &long,
        ] {
            assert!(read(odd).unwrap_err().starts_with("NAME=PATH"), "{odd}");
        }
        assert!(read("nfs=mnt").is_err() && read("nfs=/mnt/../etc").is_err());
    }
}
