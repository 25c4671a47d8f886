//! Names of images.
//!
//! Invariant: an accepted name is read as the same after it was written, and an independent reader
//! of URLs finds in it a host, a plain path and nothing else: no credentials, query or fragment. A
//! refusal repeats nothing that may be a secret.
//! Failure: a panic.

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
