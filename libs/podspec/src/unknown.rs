//! Annotations with our prefixes that no program reads.
//!
//! Invariant: a key that Vmlet's own programs write on pods is never among them.
//! Failure: none.

use std::collections::BTreeMap;

use crate::Key;
use crate::names::OF_PROGRAMS;

/// What the names of settings begin with.
const PREFIXES: [&str; 3] = ["vmlet.dev/", "vmlet.dev.protected/", "Virtlet"];

/// An annotation that no program reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    /// Its key.
    pub name: String,
    /// The setting whose name is nearest, if one is near.
    pub nearest: Option<&'static str>,
}

/// The annotations of a pod that have the prefix of a setting and are none, in the order of their
/// keys.
#[must_use]
pub fn unknown_annotations(annotations: &BTreeMap<String, String>) -> Vec<Unknown> {
    let ours = |name: &&String| PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let known = |name: &&String| {
        settings().any(|known| known == *name) || OF_PROGRAMS.contains(&name.as_str())
    };
    let unknown = annotations.keys().filter(ours).filter(|name| !known(name));
    unknown
        .map(|name| Unknown {
            name: name.clone(),
            nearest: nearest(name),
        })
        .collect()
}

fn settings() -> impl Iterator<Item = &'static str> {
    Key::ALL.iter().flat_map(|key| {
        let (ours, alias) = key.names();
        [Some(ours), alias].into_iter().flatten()
    })
}

/// A name with other letters of another case, or with one in eight letters wrong, but no other
/// prefix.
fn nearest(name: &str) -> Option<&'static str> {
    let lower = name.to_lowercase();
    let near = settings().filter_map(|known| {
        let distance = strsim::osa_distance(&lower, &known.to_lowercase());
        (distance <= (name.len() / 8).max(2)).then_some((distance, known))
    });
    near.min().map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("vmlet.dev/vcpu-count", None)]
    #[case("VirtletVCPUCount", None)]
    #[case("vmlet.dev/guest-facts", None)]
    #[case("vmlet.dev/image-url", None)]
    #[case("vmlet.dev/imageurl", Some(Some("vmlet.dev/image-url")))]
    #[case("vmlet.dev/image", Some(None))]
    #[case("example.com/vcpu-count", None)]
    #[case("vmlet.dev/vcpus-count", Some(Some("vmlet.dev/vcpu-count")))]
    #[case("vmlet.dev/sshkeys", Some(Some("vmlet.dev/ssh-keys")))]
    #[case("VirtletVcpuCount", Some(Some("VirtletVCPUCount")))]
    #[case(
        "vmlet.dev.protected/allow-spofing",
        Some(Some("vmlet.dev.protected/allow-spoofing"))
    )]
    #[case("VirtletDiskDriver", Some(None))]
    #[case("vmlet.dev/fast-deploy", None)]
    fn a_key_that_is_no_setting_is_named_with_the_nearest_one(
        #[case] name: &str,
        #[case] want: Option<Option<&'static str>>,
    ) {
        let pod = BTreeMap::from([(name.to_owned(), "x".to_owned())]);
        let found = unknown_annotations(&pod);
        assert_eq!(found.first().map(|unknown| unknown.nearest), want);
        assert!(found.iter().all(|unknown| unknown.name == name));
    }
}
