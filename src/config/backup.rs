//! Settings of backups.
//!
//! Invariant: a target is written as its text, which parses back to the same target.
//! Failure: a sentence that states what is allowed.

use std::borrow::Cow;
use std::fmt::{self, Display};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::value::AbsolutePath;

mod bucket;

pub use bucket::{BackupBucket, BucketStyle};

/// The longest name of a target in bytes.
const NAME: usize = 63;

/// What the place of a bucket begins with.
const BUCKET: &str = "s3://";

/// Backups of disks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Backup {
    /// Where backups are written to, each as `NAME=PATH` or `NAME=s3://BUCKET/PREFIX?credentials=FILE`. Objects of the cluster
    /// name a target by its name. At most 16. A directory, such as `nfs=/mnt/backups/vmlet`, is that on the node (see
    /// `shares.host_root`), and exists: use one below a mount, so that nothing is written while that is absent. A bucket of S3
    /// has the file of its credentials, which only root may read, and, after `&`, what differs from the defaults:
    /// `region` (`us-east-1`), `endpoint` (that of AWS in the region; such as `https://s3.example.com:9000`), `style` (`path`, or
    /// `host`: the bucket is in the name of the host), and `ca`, a file of the authorities that are trusted in place of those
    /// of the system. These files are on the node, too.
    pub targets: Vec<BackupTarget>,
}

/// Where backups are written to, and its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BackupTarget {
    name: String,
    place: BackupPlace,
}

/// Where backups are written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackupPlace {
    /// A directory.
    Directory(AbsolutePath),
    /// A bucket of a server that speaks S3.
    Bucket(BackupBucket),
}

impl BackupTarget {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is.
    pub const fn place(&self) -> &BackupPlace {
        &self.place
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
            "NAME=PATH or NAME=s3://BUCKET/PREFIX?credentials=FILE is allowed: a name of lower-case letters, digits and \
             hyphens, at most 63, and an absolute path or a bucket"
                .to_owned()
        };
        let (name, place) = text.split_once('=').ok_or_else(refused)?;
        if !is_target_name(name) {
            return Err(refused());
        }
        let place = match place.strip_prefix(BUCKET) {
            Some(bucket) => BackupPlace::Bucket(bucket.parse()?),
            None => BackupPlace::Directory(place.parse()?),
        };
        let name = name.to_owned();
        Ok(Self { name, place })
    }
}

impl From<BackupTarget> for String {
    fn from(target: BackupTarget) -> Self {
        format!("{}={}", target.name, target.place)
    }
}

impl Display for BackupPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => write!(f, "{path}"),
            Self::Bucket(bucket) => write!(f, "{BUCKET}{bucket}"),
        }
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
        let path = BackupPlace::Directory("/mnt/a=b".parse().unwrap());
        assert_eq!((target.name(), target.place()), ("nfs-1", &path));
        assert_eq!(String::from(target), "nfs-1=/mnt/a=b");
        let long = format!("{}=/mnt", "a".repeat(64));
        for odd in [
            "", "nfs", "=/mnt", "-a=/mnt", "a-=/mnt", "A=/mnt", "a/b=/mnt", &long,
        ] {
            assert!(read(odd).unwrap_err().starts_with("NAME=PATH"), "{odd}");
        }
        assert!(read("nfs=mnt").is_err() && read("nfs=/mnt/../etc").is_err());
    }

    #[test]
    fn a_target_may_be_a_bucket() {
        let text = "away=s3://bucket/a/b?credentials=/etc/vmlet/away";
        let target = BackupTarget::try_from(text.to_owned()).unwrap();
        assert!(matches!(target.place(), BackupPlace::Bucket(_)));
        assert_eq!(String::from(target), text);
        let odd = BackupTarget::try_from("away=s3://bucket".to_owned());
        assert!(odd.unwrap_err().contains("credentials"));
    }
}
