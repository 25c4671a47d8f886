//! Names of images, and the rules that make URLs of them.
//!
//! Invariant: an accepted name is read as the same after it was written, and an independent reader
//! of URLs finds in it a host, a plain path and nothing else: no credentials, query or fragment. A
//! refusal repeats nothing that may be a secret. Rules make a URL with a host, the same each time.
//! Failure: a panic.

use daemon::fuzzing::mapped;
use daemon::images::{Error, Reference, Version};
use http::Uri;

const LONGEST: usize = 1024;

/// A name, as a client gives it.
///
/// # Panics
///
/// When an accepted name is more than a place, or a refusal says too much.
#[allow(
    clippy::expect_used,
    clippy::panic,
    reason = "the panic is the finding"
)]
pub fn image_names(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let name = match Reference::parse(text) {
        Ok(Reference::Named(name)) => name,
        Ok(Reference::Id(id)) => {
            assert_eq!(
                id.to_string(),
                format!("sha256:{}", text.trim_start_matches("sha256:"))
            );
            return;
        }
        Err(Error::InvalidName { name, reason }) => {
            assert!(
                name.len() <= LONGEST && !name.contains(char::is_control),
                "{name:?}"
            );
            assert!(!name.contains(['?', '#']), "{name:?}");
            assert!(!reason.contains(char::is_control));
            return;
        }
        Err(other) => panic!("{other}"),
    };
    assert!(text.len() <= LONGEST);
    let written = name.to_string();
    let again = Reference::parse(&written).expect("a name");
    assert_eq!(again, Reference::Named(name.clone()));
    match name.version() {
        Version::Digest(digest) => {
            assert!(text.ends_with(&digest.to_string()), "{text}");
            assert_eq!(name.digest(), Some(*digest));
        }
        Version::Sha512(digest) => {
            assert!(text.ends_with(&digest.to_string()), "{text}");
            assert_eq!(name.digest(), None);
        }
        Version::Tag(tag) => {
            assert!(!tag.is_empty() && !tag.contains(['/', '@', ':']), "{tag}");
            assert!(tag == "latest" || text.ends_with(tag.as_str()), "{text}");
        }
    }
    let bare = name.bare();
    assert!(name.repository().ends_with(bare));
    let first = bare.split('/').next().unwrap_or_default();
    let url = if bare.contains("://") {
        bare.to_owned()
    } else if first.contains([':', '[']) {
        format!("http://{bare}")
    } else {
        format!("http://registry/{bare}")
    };
    let url: Uri = url.parse().expect("a URL");
    assert_eq!(url.query(), None);
    let authority = url.authority().expect("a host").as_str();
    assert!(!authority.contains('@'), "{authority}");
    assert!(authority.parse::<http::uri::Authority>().is_ok());
    for segment in url.path().split('/').skip(1) {
        assert!(!["", ".", ".."].contains(&segment), "{text}");
        assert!(
            segment
                .chars()
                .all(|c| c.is_ascii_graphic() && !"%?#@".contains(c)),
            "{segment}"
        );
    }
}

/// A name, and after a line break a file of translations.
///
/// # Panics
///
/// When rules make something else than a URL of a name, or a refusal is no bounded line.
#[allow(
    clippy::expect_used,
    clippy::panic,
    reason = "the panic is the finding"
)]
pub fn mapping_rules(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let (name, file) = text.split_once('\n').unwrap_or((text, ""));
    let Ok(Reference::Named(name)) = Reference::parse(name) else {
        return;
    };
    let outcome = mapped(file, &name);
    match &outcome {
        Err(reason) => {
            assert!(reason.len() <= 4 * LONGEST, "{reason}");
            assert!(!reason.contains(char::is_control), "{reason:?}");
        }
        Ok(Err(Error::InvalidName { name: shown, .. })) => assert_eq!(shown, name.repository()),
        Ok(Err(other)) => panic!("{other}"),
        Ok(Ok(url)) => {
            assert!(
                !url.contains(|c: char| c.is_control() || c == ' ' || c == '#'),
                "{url}"
            );
            let (scheme, rest) = url.split_once("://").expect("a scheme");
            match scheme {
                "http" | "https" => {
                    let authority = rest.split('/').next().unwrap_or_default();
                    assert!(!authority.is_empty() && !authority.ends_with('@'), "{url}");
                }
                "oci" => assert!(
                    matches!(Reference::parse(rest), Ok(Reference::Named(_))),
                    "{url}"
                ),
                _ => panic!("{url}"),
            }
        }
    }
    let again = mapped(file, &name);
    assert_eq!(format!("{outcome:?}"), format!("{again:?}"));
}
