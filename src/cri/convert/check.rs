//! Checks that many fields share.
//!
//! Invariant: what passes has no control characters and is within its bound.
//! Failure: [`Invalid`] with the field; the value itself is not repeated, it may be long or secret.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use super::{Invalid, Result};

/// Longest name of a pod, container or namespace; Kubernetes' own limit.
const LONGEST_NAME: usize = 253;

/// Longest path, as the kernel counts.
const LONGEST_PATH: usize = 4096;

/// Longest other text.
const LONGEST_TEXT: usize = 1024;

/// Keys and values of all labels or all annotations together, in bytes: twice what Kubernetes
/// allows.
const LARGEST_MAP: usize = 512 * 1024;

/// A required name: it appears in paths, CNI arguments and logs of others.
pub(super) fn name(field: &str, value: String) -> Result<String> {
    if value.is_empty() {
        return Err(Invalid::missing(field));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    if value.len() > LONGEST_NAME || !value.chars().all(allowed) {
        let reason = format!("up to {LONGEST_NAME} letters, digits and - _ . : are allowed");
        return Err(Invalid::new(field, reason));
    }
    Ok(value)
}

/// A text that may be empty.
pub(super) fn text(field: &str, value: String) -> Result<String> {
    bounded(field, value, LONGEST_TEXT)
}

/// Texts without spaces, such as addresses.
pub(super) fn strings(field: &str, values: Vec<String>, most: usize) -> Result<Vec<String>> {
    if values.len() > most {
        return Err(Invalid::new(field, format!("at most {most} are allowed")));
    }
    let word = |value: String| {
        let value = bounded(field, value, LONGEST_NAME)?;
        if value.is_empty() || value.contains(char::is_whitespace) {
            return Err(Invalid::new(field, "each must be one word"));
        }
        Ok(value)
    };
    values.into_iter().map(word).collect()
}

/// A path from the root, or nothing.
pub(super) fn absolute_path(field: &str, value: String) -> Result<String> {
    let value = bounded(field, value, LONGEST_PATH)?;
    if !value.is_empty() && !value.starts_with('/') {
        return Err(Invalid::new(field, "an absolute path is allowed"));
    }
    climbs_not(field, value)
}

/// A path below another one, or nothing.
pub(super) fn relative_path(field: &str, value: String) -> Result<String> {
    let value = bounded(field, value, LONGEST_PATH)?;
    if value.starts_with('/') {
        return Err(Invalid::new(field, "a relative path is allowed"));
    }
    climbs_not(field, value)
}

/// A path, absolute or not, without `..`; or nothing.
pub(super) fn path(field: &str, value: String) -> Result<String> {
    climbs_not(field, bounded(field, value, LONGEST_PATH)?)
}

/// A path inside of the container without repeated slashes, `.` and a slash at the end: kubelet passes
/// on what users write, and other runtimes clean it, too.
pub(super) fn clean_path(field: &str, value: String) -> Result<String> {
    Ok(podspec::clean_path(&path(field, value)?))
}

/// Labels or annotations.
pub(super) fn map(
    field: &str,
    value: BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>> {
    let size: usize = value.iter().map(|(k, v)| k.len() + v.len()).sum();
    if size > LARGEST_MAP {
        let reason = format!("{size} bytes are more than {LARGEST_MAP}");
        return Err(Invalid::new(field, reason));
    }
    Ok(value)
}

/// A list whose items are read one by one.
pub(super) fn list<T, U>(
    field: &str,
    values: Vec<T>,
    most: usize,
    read: impl Fn(&str, T) -> Result<U>,
) -> Result<Vec<U>> {
    if values.len() > most {
        return Err(Invalid::new(field, format!("at most {most} are allowed")));
    }
    let items = values.into_iter().enumerate();
    items
        .map(|(i, value)| read(&format!("{field}[{i}]"), value))
        .collect()
}

/// The number of an enumeration of the API.
pub(super) fn known<E: TryFrom<i32>>(field: &str, number: i32) -> Result<E> {
    E::try_from(number)
        .map_err(|_| Invalid::new(field, format!("{number} is not one of the values")))
}

fn bounded(field: &str, value: String, longest: usize) -> Result<String> {
    if value.len() > longest {
        let reason = format!("{} bytes are more than {longest}", value.len());
        return Err(Invalid::new(field, reason));
    }
    if value.contains(char::is_control) {
        return Err(Invalid::new(field, "control characters are not allowed"));
    }
    Ok(value)
}

fn climbs_not(field: &str, value: String) -> Result<String> {
    let climbs = Path::new(&value)
        .components()
        .any(|part| part == Component::ParentDir);
    if climbs {
        return Err(Invalid::new(field, "a path without .. is allowed"));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_climbs_is_refused() {
        assert!(clean_path("mounts[0]", "/srv/../etc".to_owned()).is_err());
    }
}
