//! The mappings of the cluster, which the agent brings: a file for each in a directory of our own.
//!
//! Invariant: the directory has usable files only, and of each mapping the last usable one; so they
//! count when no agent runs, too. A mapping that is not brought any more has no file.
//! Failure: the reason for each mapping that is refused; the previous one of that name stays.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::Path;

use super::file::{LONGEST, Problem};
use super::{Mappings, names};

/// Most mappings of a cluster.
const MOST: usize = 1024;
/// Longest name of an object.
const LONGEST_NAME: usize = 253;
/// What a file that is being written has before its name: such a name is hidden.
const UNFINISHED: &str = ".new-";

/// An `ImageMapping` object.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterMapping {
    /// Its name.
    pub name: String,
    /// Its rules, as a file of translations; `None`: those of before.
    pub rules: Option<String>,
}

impl Mappings {
    /// Puts these mappings in the place of those that were there. Why each is refused, in order.
    /// Blocks; the caller has the turn.
    pub(super) fn replace_cluster(
        &self,
        mappings: &[ClusterMapping],
    ) -> io::Result<Vec<Option<String>>> {
        let directory = &self.directories[1];
        std::fs::create_dir_all(directory)?;
        remove_unfinished(directory)?;
        let mut wanted = BTreeSet::new();
        let mut outcomes = Vec::new();
        for mapping in mappings {
            let refused = self.refuse(mapping, wanted.len());
            if is_name(&mapping.name) {
                wanted.insert(OsString::from(&mapping.name));
            }
            if let (None, Some(rules)) = (&refused, &mapping.rules) {
                let unfinished = directory.join(format!("{UNFINISHED}{}", mapping.name));
                let path = directory.join(&mapping.name);
                if !has(&path, rules) {
                    service::files::replace(&path, &unfinished, rules.as_bytes())?;
                }
            }
            outcomes.push(refused);
        }
        for name in names(directory)? {
            if !wanted.contains(&name) {
                std::fs::remove_file(directory.join(name))?;
            }
        }
        self.read();
        Ok(outcomes)
    }

    fn refuse(&self, mapping: &ClusterMapping, before: usize) -> Option<String> {
        if !is_name(&mapping.name) {
            return Some("its name is not that of an object".to_owned());
        }
        if before >= MOST {
            return Some(format!("a cluster has at most {MOST} of them"));
        }
        let rules = mapping.rules.as_ref()?;
        if rules.len() as u64 > LONGEST {
            return Some(format!("it is longer than {LONGEST} bytes"));
        }
        let parsed: Result<_, Problem> = self.parse(rules);
        parsed.err().map(|problem| problem.reason().to_owned())
    }
}

/// Whether a text is a DNS subdomain, as names of objects are: no path.
fn is_name(text: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b);
    (1..=LONGEST_NAME).contains(&text.len())
        && text.bytes().all(is_plain)
        && text.as_bytes()[0].is_ascii_alphanumeric()
}

/// Removes what a daemon that was killed has left.
fn remove_unfinished(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn has(path: &Path, text: &str) -> bool {
    std::fs::read(path).is_ok_and(|content| content == text.as_bytes())
}

impl std::fmt::Debug for ClusterMapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let length = self.rules.as_ref().map(String::len);
        write!(f, "{} ({length:?} bytes)", self.name)
    }
}
