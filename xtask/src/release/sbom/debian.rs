//! Debian packages of an image, as the image itself names them.
//!
//! Invariant: what is listed is what lies in the image.
//! Failure: names the image without a list, or the package whose entry lacks a field.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::{Component, Kind, Parts, encoded};
use crate::node_image::STATUS;
use crate::oci::Archived;

/// Adds an image and its packages, which are of this distribution; returns the reference of the image.
pub(super) fn add(parts: &mut Parts, image: &Archived, distribution: &str) -> Result<String> {
    let listed = image.folder(Path::new(STATUS))?;
    ensure!(!listed.is_empty(), "{} lists no packages", image.reference);
    let mut packages = Vec::new();
    for (name, entry) in listed {
        let entry = String::from_utf8_lossy(&entry).into_owned();
        let package = package(&entry, distribution).with_context(|| format!("entry of {name}"))?;
        packages.push(package.reference.clone());
        parts.add(package, []);
    }
    let name = image.reference.rsplit_once(':');
    let (name, tag) = name.with_context(|| format!("{} has no tag", image.reference))?;
    let short = name.rsplit_once('/').map_or(name, |(_, short)| short);
    let purl = format!(
        "pkg:oci/{short}@{}?tag={}",
        encoded(&image.digest),
        encoded(tag)
    );
    let digest = image.digest.strip_prefix("sha256:");
    let component = Component::known(Kind::Container, purl.clone(), name, tag);
    parts.add(component.with_sha256(digest), packages);
    Ok(purl)
}

/// The package of an entry in the form of dpkg.
fn package(entry: &str, distribution: &str) -> Result<Component> {
    let field = |name: &str| {
        let mut lines = entry.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.with_context(|| format!("no field {name}"))
    };
    let name = field("Package")?;
    let version = field("Version")?;
    let architecture = field("Architecture")?;
    // Flaws are listed by source packages. Their name is there only when it is another one.
    let source = field("Source")
        .ok()
        .and_then(|source| source.split(' ').next());
    let source = source.map_or(String::new(), |source| {
        format!("&upstream={}", encoded(source))
    });
    let vendor = distribution.split('-').next().unwrap_or_default();
    let purl = format!(
        "pkg:deb/{vendor}/{}@{}?arch={architecture}&distro={distribution}{source}",
        encoded(name),
        encoded(version)
    );
    Ok(Component::known(Kind::Library, purl, name, version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_known_by_version_architecture_and_source() {
        let entry = "Package: libvirt0\nSource: libvirt (9.0.0-4)\nVersion: 9.0.0-4+deb12u2\nArchitecture: amd64\n";
        let component = package(entry, "debian-12").unwrap();
        assert_eq!(
            component.purl.as_deref(),
            Some(
                "pkg:deb/debian/libvirt0@9.0.0-4%2Bdeb12u2?arch=amd64&distro=debian-12&upstream=libvirt"
            )
        );
        let error = package("Package: x\nVersion: 1\n", "debian-12").unwrap_err();
        assert!(error.to_string().contains("Architecture"), "{error}");
    }
}
