//! The list of versions of an image, the newest first.
//!
//! Invariant: pure. A version that nodes still pull is the first one; all others are ready. The version
//! that new machines use stays in the list, unless a pin names one that no node has pulled, and so does one that
//! they can use while the first is not ready.
//! Failure: none.

use crds::{ImageVersion, ImageVersionState, InspectedImage};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Puts the version that the source has first. Whether it was another one.
pub(super) fn add(
    versions: &mut Vec<ImageVersion>,
    digest: &str,
    image: &InspectedImage,
    now: &Time,
) -> bool {
    let image = InspectedImage {
        digest: None,
        ..image.clone()
    };
    if let Some(newest) = versions.first_mut()
        && newest.digest == digest
    {
        // A list of checksums may precede its file: what the check before has read was the earlier file.
        newest.image = image;
        return false;
    }
    // One that was followed by another before it was ready was not used: see `keep_pinned`.
    versions.retain(is_ready);
    if versions
        .first()
        .is_some_and(|newest| newest.digest == digest)
    {
        return true;
    }
    versions.retain(|version| version.digest != digest);
    let version = ImageVersion {
        digest: digest.to_owned(),
        state: ImageVersionState::Pulling,
        found_time: now.clone(),
        ready_nodes: 0,
        image,
    };
    versions.insert(0, version);
    true
}

/// Before another one is added: the newest one, if machines use it by a pin before it is ready and as many
/// nodes have it, stays as a former version.
pub(super) fn keep_pinned(versions: &mut [ImageVersion], pin: Option<&str>, nodes: u32) {
    let newest = versions.first_mut().filter(|newest| !is_ready(newest));
    let newest = newest.filter(|newest| Some(newest.digest.as_str()) == pin);
    if let Some(newest) = newest.filter(|_| nodes > 0) {
        newest.state = ImageVersionState::Ready;
        newest.ready_nodes = nodes;
    }
}

/// The version that new machines use.
pub(in crate::reconcile::image) fn current<'a>(
    versions: &'a [ImageVersion],
    pin: Option<&'a str>,
) -> Option<&'a str> {
    pin.or_else(|| {
        let ready = versions.iter().find(|version| is_ready(version))?;
        Some(ready.digest.as_str())
    })
}

/// Drops those that are neither new enough nor in use.
pub(super) fn retain(versions: &mut Vec<ImageVersion>, most: u32, current: Option<&str>) {
    let ready = versions.iter().find(|version| is_ready(version));
    let ready = ready.map(|version| version.digest.clone());
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let mut index = 0;
    versions.retain(|version| {
        let is_new = index <= most;
        index += 1;
        let digest = Some(version.digest.as_str());
        is_new || digest == current || digest == ready.as_deref()
    });
    versions.truncate(ImageVersion::MOST);
}

pub(super) fn is_ready(version: &ImageVersion) -> bool {
    version.state == ImageVersionState::Ready
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time() -> Time {
        Time(jiff::Timestamp::from_second(1_800_000_000).unwrap())
    }

    /// As `digest` for one that nodes pull, as `digest!` for one that is ready.
    fn list(words: &str) -> Vec<ImageVersion> {
        let mut all = Vec::new();
        for word in words.split_whitespace().rev() {
            let digest = word.trim_end_matches('!');
            add(&mut all, digest, &InspectedImage::default(), &time());
            if word.ends_with('!') {
                all[0].state = ImageVersionState::Ready;
            }
        }
        all
    }

    fn words(versions: &[ImageVersion]) -> String {
        let word = |version: &ImageVersion| match version.state {
            ImageVersionState::Ready => format!("{}!", version.digest),
            ImageVersionState::Pulling => version.digest.clone(),
        };
        versions.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_the_tag_means_is_the_first() {
        for (before, found, after) in [
            ("", "a", "a"),
            ("a!", "a", "a!"),
            ("a!", "b", "b a!"),
            ("b a!", "b", "b a!"),
            // Followed by another one before it was ready.
            ("b a!", "c", "c a!"),
            // The tag was moved back.
            ("b! a!", "a", "a b!"),
            ("b a!", "a", "a!"),
        ] {
            let mut versions = list(before);
            let is_another = add(&mut versions, found, &InspectedImage::default(), &time());
            assert_eq!(words(&versions), after, "{before} + {found}");
            assert_eq!(is_another, before != after, "{before} + {found}");
        }
    }

    #[test]
    fn a_pinned_one_that_a_node_has_stays_when_another_follows() {
        for (before, pin, nodes, after) in [
            ("b a!", Some("b"), 1, "c b! a!"),
            ("b a!", Some("b"), 0, "c a!"),
            ("b a!", Some("a"), 1, "c a!"),
            ("b a!", None, 1, "c a!"),
        ] {
            let mut versions = list(before);
            keep_pinned(&mut versions, pin, nodes);
            add(&mut versions, "c", &InspectedImage::default(), &time());
            assert_eq!(words(&versions), after, "{before}, {pin:?}, {nodes}");
        }
    }

    #[test]
    fn new_machines_use_the_first_that_is_ready_or_the_pinned_one() {
        for (versions, pin, expected) in [
            ("", None, None),
            ("b a!", None, Some("a")),
            ("b! a!", None, Some("b")),
            ("b! a!", Some("a"), Some("a")),
            ("b! a!", Some("x"), Some("x")),
        ] {
            assert_eq!(current(&list(versions), pin), expected, "{versions}");
        }
    }

    #[test]
    fn old_versions_go_unless_they_are_in_use() {
        for (before, most, current, after) in [
            ("d! c! b! a!", 3, "d", "d! c! b! a!"),
            ("d! c! b! a!", 1, "d", "d! c!"),
            ("d! c! b! a!", 0, "d", "d!"),
            ("d! c! b! a!", 0, "a", "d! a!"),
            ("d c! b! a!", 0, "c", "d c!"),
            // A pinned one that is not in the list: what follows it stays.
            ("d c! b! a!", 0, "x", "d c!"),
        ] {
            let mut versions = list(before);
            retain(&mut versions, most, Some(current));
            assert_eq!(words(&versions), after, "{before}, {most}, {current}");
        }
        let many: Vec<_> = (0..40).map(|n| format!("v{n}!")).collect();
        let mut many = list(&many.join(" "));
        retain(&mut many, 16, Some("v39"));
        assert_eq!(many.len(), ImageVersion::MOST);
        assert_eq!(many.last().unwrap().digest, "v39");
    }
}
