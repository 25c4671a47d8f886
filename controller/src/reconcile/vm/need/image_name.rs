//! The name by which a pod asks for an image.
//!
//! Invariant: the result is a name that kubelet accepts (a container image reference) and that the node's
//! runtime turns back into the source; it never holds credentials.
//! Failure: a URL that no such name stands for is refused with what to do instead.

use crds::{HttpSource, ImageSource, OciSource};

use super::Missing;

/// Prefix by which a name reaches our runtime, whatever else says so.
const PREFIX: &str = "vmlet.dev/";
/// Longest name that kubelet takes.
const LONGEST: usize = 253;

/// The name of an image from `source`.
pub(super) fn of(source: &ImageSource) -> Result<String, Missing> {
    match (&source.http, &source.oci, &source.pvc) {
        (Some(http), None, None) => of_http(http),
        (None, Some(oci), None) => of_oci(oci),
        (None, None, Some(claim)) => unsupported(format!(
            "images in claims cannot be copied yet: use claim {} as the root volume",
            claim.name
        )),
        _ => Err(Missing::new(
            "NotSupported",
            "the image names no single source",
        )),
    }
}

fn of_http(http: &HttpSource) -> Result<String, Missing> {
    let rest = http
        .url
        .strip_prefix("https://")
        .or_else(|| http.url.strip_prefix("http://"));
    let Some(rest) = rest else {
        return unsupported(format!("{} is neither http nor https", http.url));
    };
    if rest.contains('@') {
        return unsupported("the URL holds credentials: use a translation of the node".to_owned());
    }
    let mut segments = rest.split('/');
    let host = segments.next().unwrap_or_default();
    let is_plain = is_host(host) && rest.contains('/') && segments.all(is_component);
    if !is_plain || rest.len() > LONGEST - PREFIX.len() {
        return unsupported(format!(
            "{} cannot be written as an image name (lower case, no query): give it a name in the nodes' images.translations",
            http.url
        ));
    }
    let name = prefixed(rest);
    Ok(match http.digest.as_deref().filter(|d| !d.is_empty()) {
        Some(digest) => format!("{name}@{digest}"),
        None => name,
    })
}

fn of_oci(oci: &OciSource) -> Result<String, Missing> {
    let reference = oci.reference.as_str();
    let name = reference.split('@').next().unwrap_or_default();
    let (path, tag) = match name.rsplit_once('/') {
        Some((start, last)) => match last.split_once(':') {
            Some((last, tag)) => (format!("{start}/{last}"), tag),
            None => (name.to_owned(), ""),
        },
        None => match name.split_once(':') {
            Some((last, tag)) => (last.to_owned(), tag),
            None => (name.to_owned(), ""),
        },
    };
    let is_tag = tag.len() <= 128
        && tag
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'));
    let mut segments = path.split('/');
    let first = segments.next().unwrap_or_default();
    let is_path = (is_component(first) || is_host(first)) && segments.all(is_component);
    if is_tag && is_path && reference.len() <= LONGEST {
        Ok(prefixed(reference))
    } else {
        unsupported(format!("{reference} is not an image reference"))
    }
}

/// A port is allowed in the first part of a name only, so that such a name cannot have the prefix; the
/// pod's annotation routes it.
fn prefixed(name: &str) -> String {
    let first = name.split('/').next().unwrap_or_default();
    if first.contains(':') && name.contains('/') || name.starts_with(PREFIX) {
        name.to_owned()
    } else {
        format!("{PREFIX}{name}")
    }
}

fn is_host(text: &str) -> bool {
    let (host, port) = text.split_once(':').unwrap_or((text, "1"));
    let is_name = host.split('.').all(|label| {
        !label.is_empty()
            && label
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    });
    is_name && port.parse::<u16>().is_ok()
}

/// Lower-case letters and digits, with single separators between them.
fn is_component(text: &str) -> bool {
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let ends = |b: Option<&u8>| b.is_some_and(|b| word(*b));
    ends(text.as_bytes().first())
        && ends(text.as_bytes().last())
        && text
            .bytes()
            .all(|b| word(b) || matches!(b, b'.' | b'_' | b'-'))
        && !["..", "._", "_.", ".-", "-.", "_-", "-_", "___"]
            .iter()
            .any(|bad| text.contains(bad))
}

fn unsupported(message: String) -> Result<String, Missing> {
    Err(Missing::new("NotSupported", message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(url: &str, digest: Option<&str>) -> Result<String, Missing> {
        of(&ImageSource {
            http: Some(HttpSource {
                url: url.to_owned(),
                digest: digest.map(str::to_owned),
                tls_secret: None,
            }),
            ..ImageSource::default()
        })
    }

    fn oci(reference: &str) -> Result<String, Missing> {
        of(&ImageSource {
            oci: Some(OciSource {
                reference: reference.to_owned(),
                pull_secret: None,
            }),
            ..ImageSource::default()
        })
    }

    #[test]
    fn a_url_becomes_a_name_that_kubelet_accepts() {
        let name = http("https://images.example.org/debian-12.qcow2", None);
        assert_eq!(
            name.unwrap(),
            "vmlet.dev/images.example.org/debian-12.qcow2"
        );
        let name = http("http://10.0.0.1:8080/a/b.img", Some("sha256:00"));
        assert_eq!(name.unwrap(), "10.0.0.1:8080/a/b.img@sha256:00");
    }

    #[test]
    fn a_url_that_no_name_stands_for_is_refused_with_what_to_do() {
        for url in [
            "https://h.example/Debian.qcow2",
            "https://h.example/a?b=c",
            "https://h.example",
            "https://h.example//a",
            "https://h.example/a%20b",
        ] {
            let missing = http(url, None).unwrap_err();
            assert_eq!(missing.reason, "NotSupported");
            assert!(
                missing.message.contains("translations"),
                "{}",
                missing.message
            );
        }
        let missing = http("https://user:secret@h.example/a", None).unwrap_err();
        assert!(!missing.message.contains("secret"));
        assert!(http("ftp://h.example/a", None).is_err());
    }

    #[test]
    fn a_registry_reference_keeps_tag_and_digest() {
        assert_eq!(oci("debian").unwrap(), "vmlet.dev/debian");
        assert_eq!(oci("vmlet.dev/hello").unwrap(), "vmlet.dev/hello");
        assert_eq!(
            oci("r.example/d/deb:12").unwrap(),
            "vmlet.dev/r.example/d/deb:12"
        );
        assert_eq!(oci("localhost:5000/d:1").unwrap(), "localhost:5000/d:1");
        assert!(oci("r.example/D").is_err() && oci("a b").is_err() && oci("").is_err());
    }

    #[test]
    fn no_source_two_sources_and_claims_are_not_supported() {
        assert!(of(&ImageSource::default()).is_err());
        let both = ImageSource {
            http: Some(HttpSource::default()),
            oci: Some(OciSource::default()),
            pvc: None,
        };
        assert_eq!(of(&both).unwrap_err().reason, "NotSupported");
    }
}
