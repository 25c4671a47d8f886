//! The software bill of materials: our programs with the crates in them, the images with their Debian packages.
//!
//! Invariant: the same lock file, images and commit give the same bytes. Components are in the order of their
//! references, and each one that is named is there.
//! Failure: names what cannot be read.

mod crates;
mod debian;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde::Serialize;

use super::source::{Commit, Version};
use crate::oci::Archived;

/// A document of CycloneDX.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Document {
    bom_format: &'static str,
    spec_version: &'static str,
    version: u32,
    metadata: Metadata,
    components: Vec<Component>,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Serialize)]
struct Metadata {
    timestamp: String,
    component: Component,
}

/// A part of the release.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Component {
    #[serde(rename = "type")]
    kind: Kind,
    #[serde(rename = "bom-ref")]
    reference: String,
    name: String,
    version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<Scope>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hashes: Vec<Hash>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    licenses: Vec<License>,
    #[serde(skip_serializing_if = "Option::is_none")]
    purl: Option<String>,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Application,
    Container,
    Library,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Scope {
    /// Used by the build, and not in its results.
    Excluded,
}

#[derive(Debug, Clone, Serialize)]
struct Hash {
    alg: &'static str,
    content: String,
}

#[derive(Debug, Clone, Serialize)]
struct License {
    expression: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Dependency {
    #[serde(rename = "ref")]
    reference: String,
    depends_on: BTreeSet<String>,
}

/// Components by their references, and what each of them is made of.
#[derive(Debug, Default)]
struct Parts {
    components: BTreeMap<String, Component>,
    needs: BTreeMap<String, BTreeSet<String>>,
}

impl Parts {
    fn add(&mut self, component: Component, needs: impl IntoIterator<Item = String>) {
        let reference = component.reference.clone();
        let of_it = self.needs.entry(reference.clone()).or_default();
        of_it.extend(needs);
        self.components.insert(reference, component);
    }
}

impl Component {
    fn new(kind: Kind, reference: String, name: &str, version: &str) -> Self {
        Self {
            kind,
            reference,
            name: name.to_owned(),
            version: version.to_owned(),
            scope: None,
            hashes: Vec::new(),
            licenses: Vec::new(),
            purl: None,
        }
    }

    /// A component that is known everywhere by its package URL.
    fn known(kind: Kind, purl: String, name: &str, version: &str) -> Self {
        Self {
            purl: Some(purl.clone()),
            ..Self::new(kind, purl, name, version)
        }
    }

    fn with_sha256(mut self, digest: Option<&str>) -> Self {
        self.hashes.extend(digest.map(|digest| Hash {
            alg: "SHA-256",
            content: digest.to_owned(),
        }));
        self
    }
}

impl Document {
    /// The document of a release with these images, whose packages are of this distribution (`debian-12`).
    pub(crate) fn read(
        version: &Version,
        commit: &Commit,
        images: &[Archived],
        distribution: &str,
    ) -> Result<Self> {
        let mut parts = Parts::default();
        let mut whole: BTreeSet<String> = crates::add(&mut parts)?.into_iter().collect();
        for image in images {
            whole.insert(debian::add(&mut parts, image, distribution)?);
        }
        let version = version.to_string();
        let release = Component::new(Kind::Application, "release".to_owned(), "vmlet", &version);
        parts.needs.insert(release.reference.clone(), whole);
        let needs = parts.needs.into_iter();
        Ok(Self {
            bom_format: "CycloneDX",
            spec_version: "1.6",
            version: 1,
            metadata: Metadata {
                timestamp: commit.date.clone(),
                component: release,
            },
            components: parts.components.into_values().collect(),
            dependencies: needs
                .map(|(reference, depends_on)| Dependency {
                    reference,
                    depends_on,
                })
                .collect(),
        })
    }
}

/// A part of a package URL, with what is not plain in it encoded.
fn encoded(part: &str) -> String {
    let mut text = String::with_capacity(part.len());
    for byte in part.bytes() {
        let letter = char::from(byte);
        if letter.is_ascii_alphanumeric() || ".-_~:".contains(letter) {
            text.push(letter);
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests;
