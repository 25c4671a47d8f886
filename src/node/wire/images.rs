//! Conversions of images, and of the result of an inspection.
//!
//! Invariant: a URL that comes out of a request belongs to the image's name and has no credentials.
//! Failure: [`Invalid`] names the field; it repeats neither name nor URL.

use nodeapi::v1;
use podspec::{Source, SourceKind};

use super::Invalid;
use crate::images::{Firmware, Format, Inspected, Locator, Reference};
use crate::node::task::Work;

/// Longest image name in bytes.
const IMAGE: usize = 4096;

/// The work of a request to look at an image.
pub(super) fn inspect(wanted: v1::InspectImage) -> Result<Work, Invalid> {
    named("inspect_image.image", &wanted.image)?;
    let url = url("inspect_image.image_url", &wanted.image, wanted.image_url)?;
    let tls_secret = secret("inspect_image.image_tls_secret", wanted.image_tls_secret)?;
    let checksum_url = checksums(&wanted.image, url.as_deref(), wanted.image_checksum_url)?;
    Ok(Work::InspectImage {
        image: wanted.image,
        url,
        tls_secret,
        checksum_url,
    })
}

/// The work of a request to pull an image.
pub(super) fn pull(wanted: v1::PullImage) -> Result<Work, Invalid> {
    named("pull_image.image", &wanted.image)?;
    let url = url("pull_image.image_url", &wanted.image, wanted.image_url)?;
    let tls_secret = secret("pull_image.image_tls_secret", wanted.image_tls_secret)?;
    Ok(Work::PullImage {
        image: wanted.image,
        url,
        tls_secret,
    })
}

/// Refuses everything but a name.
fn named(field: &'static str, text: &str) -> Result<(), Invalid> {
    match name(field, text)? {
        Reference::Id(_) => Err(Invalid {
            field,
            reason: "an id says nothing about where the image is: a name is needed",
        }),
        Reference::Named(_) => Ok(()),
    }
}

/// What names an image.
pub(super) fn name(field: &'static str, text: &str) -> Result<Reference, Invalid> {
    let refuse = |reason| Invalid { field, reason };
    if text.is_empty() || text.len() > IMAGE {
        return Err(refuse("the name of an image is needed"));
    }
    Reference::parse(text).map_err(|_| refuse("it names no image"))
}

/// The URL that the name of an image refers to, if it is made of one.
pub(super) fn url(
    field: &'static str,
    image: &str,
    given: String,
) -> Result<Option<String>, Invalid> {
    let url = Some(given).filter(|url| !url.is_empty());
    let is_name = matches!(Reference::parse(image), Ok(Reference::Named(_)));
    if is_name || url.is_some() {
        let checked = Locator::new(image, url.as_deref()).check();
        checked.map_err(|_| Invalid {
            field,
            reason: "it must be the URL that the image's name is made of, http or https, without user name and \
                     password, of at most 2048 bytes; and empty for every other name",
        })?;
    }
    Ok(url)
}

/// The URL of a file of checksums, if there is one.
fn checksums(image: &str, url: Option<&str>, given: String) -> Result<Option<String>, Invalid> {
    let given = Some(given).filter(|url| !url.is_empty());
    let locator = Locator::new(image, url).with_checksums(given.as_deref());
    let checked = locator.check();
    checked.map_err(|_| Invalid {
        field: "inspect_image.image_checksum_url",
        reason: "it must be http or https, without user name and password, of at most 2048 bytes, for an image with a \
                 URL of a web server; else empty",
    })?;
    Ok(given)
}

/// The name of a Secret, if there is one.
pub(super) fn secret(field: &'static str, given: String) -> Result<Option<String>, Invalid> {
    let given = Some(given).filter(|name| !name.is_empty());
    let check = |name: &String| Source::new(SourceKind::Secret, name).map(drop);
    let checked = given.as_ref().map_or(Ok(()), check);
    let refused = |_| Invalid {
        field,
        reason: "it must be the name of a Secret, or empty",
    };
    checked.map_err(refused).map(|()| given)
}

/// As clients see it.
pub(super) fn inspected(image: Inspected) -> v1::InspectedImage {
    v1::InspectedImage {
        format: image.format.map_or("", Format::as_str).to_owned(),
        virtual_bytes: image.virtual_bytes,
        file_bytes: image.file_bytes,
        bootable: image.bootable,
        firmware: image.firmware.map_or("", Firmware::as_str).to_owned(),
        digest: image
            .digest
            .map(|digest| digest.to_string())
            .unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The refused field, which both kinds of task have.
    fn field(image: &str, url: &str) -> &'static str {
        let image = image.to_owned();
        let image_url = url.to_owned();
        let wanted = v1::InspectImage {
            image: image.clone(),
            image_url: image_url.clone(),
            ..v1::InspectImage::default()
        };
        let refused = inspect(wanted).unwrap_err().field;
        let wanted = v1::PullImage {
            image,
            image_url,
            ..v1::PullImage::default()
        };
        let also = pull(wanted).unwrap_err().field;
        assert_eq!(
            also.strip_prefix("pull_image"),
            refused.strip_prefix("inspect_image")
        );
        refused
    }

    #[test]
    fn an_image_and_its_url_go_together() {
        let url = "https://Host.example:8443/A.qcow2?v=1";
        let name = podspec::url_image_name(url);
        let id = "0".repeat(64);
        assert_eq!(field("", ""), "inspect_image.image");
        assert_eq!(field("host/a b", ""), "inspect_image.image");
        assert_eq!(field(&id, ""), "inspect_image.image");
        let of_url = "inspect_image.image_url";
        assert_eq!(field("h.org/disk", url), of_url);
        assert_eq!(field(&name, ""), of_url);
        assert_eq!(field(&name, "https://Host.example/"), of_url);
        let secret = "https://me:hush@h/a";
        assert_eq!(field(&podspec::url_image_name(secret), secret), of_url);
        for (image, url) in [(name.as_str(), url), ("h.org/disk", "")] {
            let wanted = v1::InspectImage {
                image: image.to_owned(),
                image_url: url.to_owned(),
                image_tls_secret: "images-tls".to_owned(),
                image_checksum_url: String::new(),
            };
            let given = Some(url.to_owned()).filter(|url| !url.is_empty());
            let work = Work::InspectImage {
                image: image.to_owned(),
                url: given.clone(),
                tls_secret: Some("images-tls".to_owned()),
                checksum_url: None,
            };
            assert_eq!(inspect(wanted).unwrap(), work);
            let wanted = v1::PullImage {
                image: image.to_owned(),
                image_url: url.to_owned(),
                ..v1::PullImage::default()
            };
            let work = Work::PullImage {
                image: image.to_owned(),
                url: given,
                tls_secret: None,
            };
            assert_eq!(pull(wanted).unwrap(), work);
        }
    }

    #[test]
    fn a_file_of_checksums_is_for_an_image_of_a_web_server() {
        let url = "https://host.example/a.qcow2";
        let looked = |image: &str, image_url: &str, list: &str| {
            let wanted = v1::InspectImage {
                image: image.to_owned(),
                image_url: image_url.to_owned(),
                image_checksum_url: list.to_owned(),
                ..v1::InspectImage::default()
            };
            inspect(wanted).map_err(|refused| refused.field)
        };
        let name = podspec::url_image_name(url);
        let list = "https://Sums.example/SHA256SUMS?v=1";
        let work = looked(&name, url, list).unwrap();
        let Work::InspectImage { checksum_url, .. } = work else {
            panic!("{work:?}");
        };
        assert_eq!(checksum_url.as_deref(), Some(list));
        let refused = Err("inspect_image.image_checksum_url");
        for bad in [
            "https://me:hush@h/SUMS",
            "file:///etc/shadow",
            "oci://h/a",
            "SUMS",
        ] {
            assert_eq!(looked(&name, url, bad), refused, "{bad}");
        }
        assert_eq!(looked("h.org/disk", "", list), refused);
        assert_eq!(looked("h.org/disk", "oci://h.org/disk", list), refused);
    }

    #[test]
    fn a_secret_has_a_name_that_secrets_have() {
        let wanted = |name: &str| v1::PullImage {
            image: "h.org/disk".to_owned(),
            image_tls_secret: name.to_owned(),
            ..v1::PullImage::default()
        };
        assert!(pull(wanted("images-tls")).is_ok());
        let refused = pull(wanted("../other")).unwrap_err();
        assert_eq!(refused.field, "pull_image.image_tls_secret");
    }
}
