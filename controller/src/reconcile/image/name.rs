//! The name by which a pod requests an image.
//!
//! Invariant: the result is a name that kubelet accepts (a container image reference) and that the
//! node's runtime turns back into the source; it never holds credentials. The same source always
//! has the same name. Sources in claims share one name, which requests no image.
//! Failure: a source that no such name refers to is refused with what to do instead.

use crds::{HttpSource, ImageSource, ImageUpdate, OciSource, names};
use podspec::url_image_name;

/// Prefix by which a name reaches our runtime, whatever else is set.
const PREFIX: &str = "vmlet.dev/";
/// Scheme of the URL that says that a name is one of a registry.
const REGISTRY: &str = "oci://";
/// Longest name that kubelet takes.
const LONGEST: usize = 253;
/// Length of `@` and a digest.
const DIGEST: usize = 72;

/// An image as pods and tasks name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: String,
    /// The URL that the name refers to, where it is made of the URL's hash; `oci://` and the name,
    /// where it is one of a registry.
    pub(crate) url: Option<String>,
    /// A file of checksums, which says what version the server has.
    pub(crate) checksum_url: Option<String>,
}

/// Why a source cannot be used, in a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotSupported(pub(crate) String);

/// The name of an image from `source`.
pub(crate) fn from_source(source: &ImageSource) -> Result<Named, NotSupported> {
    match (&source.http, &source.oci, &source.pvc) {
        (Some(http), None, None) => of_http(http),
        (None, Some(oci), None) => of_oci(oci),
        // The storage copies it: no node pulls it.
        (None, None, Some(_)) => Ok(Named {
            name: names::NO_IMAGE.to_owned(),
            url: None,
            checksum_url: None,
        }),
        _ => unsupported("the image names no single source".to_owned()),
    }
}

/// The name of an image that follows a tag or a file, which nodes check: each of its versions has a name,
/// too.
pub(crate) fn of_followed(
    source: &ImageSource,
    update: &ImageUpdate,
) -> Result<Named, NotSupported> {
    let checksum_url = update.checksum_url.as_ref();
    match (&source.http, checksum_url) {
        (Some(http), Some(checksum_url)) if http.digest.is_none() => Ok(Named {
            checksum_url: Some(checksum_url.clone()),
            ..of_http(http)?
        }),
        (Some(_), _) => unsupported(
            "nodes check files of web servers only by update.checksumURL, and without digest"
                .to_owned(),
        ),
        (None, _) => of_tag(source),
    }
}

fn of_tag(source: &ImageSource) -> Result<Named, NotSupported> {
    let oci = source.oci.as_ref().filter(|oci| oci.pull_secret.is_none());
    let Some(oci) = oci.filter(|oci| !oci.reference.contains('@')) else {
        return unsupported("nodes check only tags of registries, without credentials".to_owned());
    };
    if oci.reference.len() + DIGEST > LONGEST {
        let reference = &oci.reference;
        return unsupported(format!(
            "{reference} is too long for an image that follows a tag: with a digest it has more than {LONGEST} \
             characters"
        ));
    }
    of_oci(oci)
}

/// The name of one version of an image that follows a tag or a file.
pub(crate) fn of_version(source: &ImageSource, digest: &str) -> Result<Named, NotSupported> {
    if let Some(http) = &source.http {
        return of_http(&HttpSource {
            digest: Some(digest.to_owned()),
            ..http.clone()
        });
    }
    of_tag(source)?;
    let reference = source.oci.as_ref().map(|oci| oci.reference.as_str());
    let reference = format!("{}@{digest}", reference.unwrap_or_default());
    of_oci(&OciSource {
        reference,
        pull_secret: None,
    })
}

/// Any URL: with upper case, a port, a query.
fn of_http(http: &HttpSource) -> Result<Named, NotSupported> {
    let url = http.url.as_str();
    let rest = url
        .strip_prefix("https://")
        .or_else(|| url.strip_prefix("http://"));
    let Some(rest) = rest else {
        return unsupported(format!("{url} is neither http nor https"));
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return unsupported("the URL holds credentials: use a translation of the node".to_owned());
    }
    let name = url_image_name(url);
    let digest = http.digest.as_deref().filter(|digest| !digest.is_empty());
    Ok(Named {
        name: digest.map_or_else(|| name.clone(), |digest| format!("{name}@{digest}")),
        url: Some(url.to_owned()),
        checksum_url: None,
    })
}

fn of_oci(oci: &OciSource) -> Result<Named, NotSupported> {
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
        let is_routed = reference.starts_with(PREFIX);
        let has_host = path.contains('/') && is_registry(first);
        // kubelet finds pull credentials by the registry in the name, and takes a port in the first
        // part of a name only.
        let is_plain = oci.pull_secret.is_some() || has_host && first.contains(':');
        Ok(Named {
            name: if is_plain && !is_routed {
                reference.to_owned()
            } else {
                prefixed(reference)
            },
            // The rules of the nodes come first, and say alone where a name of ours is.
            url: (!is_routed).then(|| format!("{REGISTRY}{reference}")),
            checksum_url: None,
        })
    } else {
        unsupported(format!("{reference} is not an image reference"))
    }
}

fn prefixed(name: &str) -> String {
    if name.starts_with(PREFIX) {
        name.to_owned()
    } else {
        format!("{PREFIX}{name}")
    }
}

/// Whether the first part of a name is the host of a registry, as container runtimes read names.
fn is_registry(first: &str) -> bool {
    let is_prefix = PREFIX.trim_end_matches('/') == first;
    !is_prefix && (first == "localhost" || first.contains(['.', ':']))
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

fn unsupported(message: String) -> Result<Named, NotSupported> {
    Err(NotSupported(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(url: &str, digest: Option<&str>) -> Result<Named, NotSupported> {
        from_source(&ImageSource {
            http: Some(HttpSource {
                url: url.to_owned(),
                digest: digest.map(str::to_owned),
                tls_secret: None,
            }),
            ..ImageSource::default()
        })
    }

    fn oci(reference: &str) -> Result<Named, NotSupported> {
        with_secret(reference, None)
    }

    fn with_secret(reference: &str, secret: Option<&str>) -> Result<Named, NotSupported> {
        from_source(&ImageSource {
            oci: Some(OciSource {
                reference: reference.to_owned(),
                pull_secret: secret.map(str::to_owned),
            }),
            ..ImageSource::default()
        })
    }

    #[test]
    fn any_url_has_a_name_that_kubelet_accepts() {
        for url in [
            "https://images.example.org/debian-12.qcow2",
            "http://H.example:8080/Debian.qcow2?b=c",
            "https://h.example",
            "https://h.example/a@b",
        ] {
            let named = http(url, None).unwrap();
            assert_eq!(named.name, url_image_name(url));
            assert_eq!(named.url.as_deref(), Some(url));
        }
        let digest = format!("sha256:{}", "0".repeat(64));
        let named = http("https://h.example/a", Some(&digest)).unwrap();
        let name = url_image_name("https://h.example/a");
        assert_eq!(named.name, format!("{name}@{digest}"));
        assert!(named.name.len() <= LONGEST);
        assert_eq!(http("https://h.example/a", Some("")).unwrap().name, name);
    }

    #[test]
    fn credentials_and_other_schemes_are_refused_without_being_repeated() {
        let refused = http("https://user:secret@h.example/a", None).unwrap_err();
        assert!(!refused.0.contains("secret"), "{refused:?}");
        assert!(http("ftp://h.example/a", None).is_err());
    }

    #[test]
    fn a_registry_reference_keeps_tag_and_digest() {
        let digest = format!("r.example/d@sha256:{}", "0".repeat(64));
        for (reference, secret, name) in [
            ("r.example/d/deb:12", None, "vmlet.dev/r.example/d/deb:12"),
            ("r.example/d/deb:12", Some("login"), "r.example/d/deb:12"),
            ("localhost:5000/d:1", None, "localhost:5000/d:1"),
            (&digest, Some("login"), &digest),
        ] {
            let named = with_secret(reference, secret).unwrap();
            assert_eq!(named.name, name);
            assert_eq!(named.url, Some(format!("oci://{reference}")));
        }
        assert!(oci("r.example/D").is_err() && oci("a b").is_err() && oci("").is_err());
    }

    #[test]
    fn a_reference_without_a_registry_is_for_the_rules_of_the_nodes_and_for_docker_hub() {
        for (reference, name) in [
            ("debian", "vmlet.dev/debian"),
            ("disks/debian:12", "vmlet.dev/disks/debian:12"),
        ] {
            let named = oci(reference).unwrap();
            let url = Some(format!("oci://{reference}"));
            assert_eq!((named.name.as_str(), named.url), (name, url));
        }
        let ours = oci("vmlet.dev/hello").unwrap();
        assert_eq!((ours.name.as_str(), ours.url), ("vmlet.dev/hello", None));
    }

    #[test]
    fn a_version_of_a_tag_is_named_by_its_digest() {
        let digest = format!("sha256:{}", "0".repeat(64));
        let version = |reference: &str, secret: Option<&str>| {
            let oci = OciSource {
                reference: reference.to_owned(),
                pull_secret: secret.map(str::to_owned),
            };
            let source = ImageSource {
                oci: Some(oci),
                ..ImageSource::default()
            };
            of_version(&source, &digest).map_err(|refused| refused.0)
        };
        for (reference, name) in [
            ("r.example/d:1", "vmlet.dev/r.example/d:1"),
            ("localhost:5000/d", "localhost:5000/d"),
        ] {
            let named = version(reference, None).unwrap();
            assert_eq!(named.name, format!("{name}@{digest}"));
            assert_eq!(named.url, Some(format!("oci://{reference}@{digest}")));
        }
        let long = format!("r.example/{}", "a".repeat(200));
        assert!(version(&long, None).unwrap_err().contains("is too long"));
        for (reference, secret) in [("r.example/d", Some("s")), (&format!("d@{digest}"), None)] {
            assert!(
                version(reference, secret)
                    .unwrap_err()
                    .contains("only tags")
            );
        }
        assert!(of_version(&ImageSource::default(), &digest).is_err());
    }

    #[test]
    fn a_version_of_a_file_is_named_by_the_url_and_its_checksum() {
        let url = "https://h.example/disk.img";
        let list = "https://h.example/SHA256SUMS";
        let source = |digest: Option<&str>| ImageSource {
            http: Some(HttpSource {
                url: url.to_owned(),
                digest: digest.map(str::to_owned),
                tls_secret: None,
            }),
            ..ImageSource::default()
        };
        let update = |list: Option<&str>| ImageUpdate {
            checksum_url: list.map(str::to_owned),
            ..ImageUpdate::default()
        };
        let followed = of_followed(&source(None), &update(Some(list))).unwrap();
        assert_eq!(followed.name, url_image_name(url));
        assert_eq!(followed.url.as_deref(), Some(url));
        assert_eq!(followed.checksum_url.as_deref(), Some(list));
        for digest in [
            format!("sha256:{}", "0".repeat(64)),
            format!("sha512:{}", "0".repeat(128)),
        ] {
            let version = of_version(&source(None), &digest).unwrap();
            assert_eq!(version.name, format!("{}@{digest}", url_image_name(url)));
            assert!(version.name.len() <= LONGEST);
            assert_eq!(version.url.as_deref(), Some(url));
            assert_eq!(version.checksum_url, None, "its content is known");
        }
        let digest = format!("sha256:{}", "0".repeat(64));
        assert!(of_followed(&source(None), &update(None)).is_err());
        assert!(of_followed(&source(Some(&digest)), &update(Some(list))).is_err());
    }

    #[test]
    fn no_source_and_two_sources_are_not_supported() {
        assert!(from_source(&ImageSource::default()).is_err());
        let both = ImageSource {
            http: Some(HttpSource::default()),
            oci: Some(OciSource::default()),
            pvc: None,
        };
        assert!(
            from_source(&both)
                .unwrap_err()
                .0
                .contains("no single source")
        );
    }
}
