//! What is to be mounted, in the words of the command line.
//!
//! Invariant: a name is one plain component of a path, a path is absolute.
//! Failure: what the text lacks.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The name of a mount below the directory of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name(String);

impl Name {
    /// Its path for the server.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from("/").join(&self.0)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if !text.is_empty() && text.chars().all(is_plain) {
            Ok(Self(text.to_owned()))
        } else {
            Err("a name has letters, digits and dashes".to_owned())
        }
    }
}

/// Whether the guest may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Write,
    /// File systems that are mounted below are as they are.
    ReadOnly,
    /// File systems that are mounted below are read-only, too.
    AllReadOnly,
}

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) name: Name,
    /// On the node.
    pub(crate) path: PathBuf,
    pub(crate) access: Access,
    /// File systems that the node mounts below it later are seen.
    pub(crate) follows: bool,
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.splitn(3, ':');
        let mut part = || parts.next().ok_or("OPTIONS:NAME:PATH is expected");
        let options = part()?;
        let name = part()?.parse()?;
        let path = PathBuf::from(part()?);
        if !path.is_absolute() {
            return Err(format!("the path {} is not absolute", path.display()));
        }
        let mut access = Access::Write;
        let mut follows = false;
        for option in options.split(',') {
            match option {
                "rw" => access = Access::Write,
                "ro" => access = Access::ReadOnly,
                "rro" => access = Access::AllReadOnly,
                "rprivate" => follows = false,
                "rslave" => follows = true,
                other => return Err(format!("the option {other:?} is not known")),
            }
        }
        Ok(Self {
            name,
            path,
            access,
            follows,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn options_are_those_of_mount() {
        let wanted: Wanted = "rro,rslave:ab12-0:/srv/a:b".parse().unwrap();
        assert_eq!(wanted.name.path(), PathBuf::from("/ab12-0"));
        assert_eq!(wanted.path, PathBuf::from("/srv/a:b"));
        assert_eq!((wanted.access, wanted.follows), (Access::AllReadOnly, true));
        let wanted: Wanted = "ro:a:/".parse().unwrap();
        assert_eq!((wanted.access, wanted.follows), (Access::ReadOnly, false));
    }

    #[test]
    fn what_leads_elsewhere_is_refused() {
        for (text, word) in [
            ("rw:..:/srv", "letters"),
            ("rw:a/b:/srv", "letters"),
            ("rw::/srv", "letters"),
            ("rw:a:srv", "absolute"),
            ("rw:a", "OPTIONS"),
            ("exec:a:/srv", "not known"),
        ] {
            let error = text.parse::<Wanted>().unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
