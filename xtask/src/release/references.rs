//! The images that chart and manifests name: an installation without access to other registries needs all of them.
//!
//! Invariant: an image that is neither of the release nor in [`OTHERS`] is an error: what a cluster needs is in the
//! release, or is an option that the administrator chooses.
//! Failure: names the file and the image.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::Value;

use super::pinned::Digests;
use crate::text_files::TextFiles;

/// Images of others, and what names them.
pub(crate) const OTHERS: [Other; 2] = [
    Other {
        reference: "quay.io/brancz/kube-rbac-proxy:v0.18.1",
        use_case: "metrics of nodes: deploy/prometheus/scrape, monitoring.nodeMetrics of the chart",
    },
    Other {
        reference: "quay.io/containerdisks/debian:12",
        use_case: "the guest of helm test: test.image of the chart",
    },
];

/// An image that a release names and does not have.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Other {
    pub(crate) reference: &'static str,
    #[serde(rename = "for")]
    pub(crate) use_case: &'static str,
}

/// Fails unless these images, by their digests, are all that the files name, but for those of [`OTHERS`].
pub(crate) fn check(chart: &TextFiles, manifests: &TextFiles, images: &Digests) -> Result<()> {
    let images: Vec<_> = images
        .iter()
        .map(|(name, digest)| format!("{name}@{digest}"))
        .collect();
    let values = Path::new("values.yaml");
    let values = chart
        .get(values)
        .map(|text| (values, text))
        .context("no values.yaml")?;
    let manifests = manifests.iter().map(|(path, text)| (path.as_path(), text));
    let manifests = manifests.filter(|(path, _)| path.extension().is_some_and(|end| end == "yaml"));
    for (path, text) in manifests.chain([values]) {
        let named = named(text).with_context(|| format!("read {}", path.display()))?;
        for reference in named.into_keys() {
            let of_others = OTHERS.iter().any(|other| other.reference == reference);
            ensure!(
                of_others || images.contains(&reference),
                "{} names the image {reference}, which the release does not have",
                path.display()
            );
        }
    }
    Ok(())
}

/// The references in the documents of a file, each with the number of times it is there.
fn named(text: &str) -> Result<BTreeMap<String, usize>> {
    let mut found = BTreeMap::new();
    for document in text.split("\n---\n") {
        let document: Value = serde_saphyr::from_str(document)?;
        walk(&document, &mut found);
    }
    Ok(found)
}

fn walk(value: &Value, found: &mut BTreeMap<String, usize>) {
    let mut add = |reference: Option<String>| {
        if let Some(reference) = reference {
            *found.entry(reference).or_default() += 1;
        }
    };
    if let Some(image) = value.get("image") {
        add(image.as_str().map(str::to_owned));
        add(reference(image, "repository", "tag"));
        // Images of other programs, in the same registry.
        let parts = image.as_object().into_iter().flatten();
        for (name, part) in parts.filter(|(_, part)| part.get("repository").is_some()) {
            let mut whole = part.clone();
            if whole["repository"] == "" {
                // As the templates have it.
                whole["repository"] = Value::from(format!("vmlet-{name}"));
            }
            for key in ["registry", "tag"] {
                whole[key] = image[key].clone();
            }
            add(reference(&whole, "repository", "tag"));
        }
    }
    // The list of a kustomization.
    for image in value
        .get("images")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        add(reference(image, "name", "newTag"));
    }
    let below: Vec<&Value> = match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => Vec::new(),
    };
    for value in below {
        walk(value, found);
    }
}

/// A reference in parts: name, tag and digest, each of which may be absent or empty.
fn reference(image: &Value, name: &str, tag: &str) -> Option<String> {
    let part = |key: &str| {
        let part = image.get(key).and_then(Value::as_str);
        part.filter(|part| !part.is_empty())
    };
    let mut reference = part(name)?.to_owned();
    if let Some(registry) = part("registry") {
        reference = format!("{registry}/{reference}");
    }
    if let Some(tag) = part(tag) {
        reference = format!("{reference}:{tag}");
    }
    if let Some(digest) = part("digest") {
        reference = format!("{reference}@{digest}");
    }
    Some(reference)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{chart, release::pinned, release::source};

    const DIGEST: &str = "sha256:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef";

    fn images() -> Digests {
        let names = ["node", "controller", "agent"];
        names
            .map(|name| (format!("localhost/vmlet-{name}"), DIGEST.to_owned()))
            .into()
    }

    fn text_file(path: &str, text: &str) -> TextFiles {
        [(path.into(), text.to_owned())].into()
    }

    #[test]
    fn pods_values_and_lists_of_a_kustomization_name_images() {
        let text = "kind: A\nspec:\n  containers:\n    - image: a:1\n    - image: &b b:2\n    - image: *b\n---\n\
                    images:\n  - name: c\n    newTag: '3'\n---\nimage:\n  registry: d\n  repository: e\n  tag: ''\n  \
                    digest: sha256:4\n  part:\n    repository: f\n    digest: sha256:5\n  other:\n    repository: ''\n    \
                    digest: sha256:6\n";
        let found = named(text).unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|(name, count)| (name.as_str(), *count))
            .collect();
        assert_eq!(
            found,
            [
                ("a:1", 1),
                ("b:2", 2),
                ("c:3", 1),
                ("d/e@sha256:4", 1),
                ("d/f@sha256:5", 1),
                ("d/vmlet-other@sha256:6", 1)
            ]
        );
    }

    #[test]
    fn everything_that_a_release_names_is_in_it() {
        let commit = source::Commit::read().unwrap();
        let version = source::Version::snapshot("0.2.0", &commit);
        let chart = pinned::chart(&version, &images()).unwrap();
        let manifests = pinned::manifests(&images()).unwrap();
        check(&chart, &manifests, &images()).unwrap();
        let pinned: usize = manifests
            .values()
            .map(|text| text.matches(DIGEST).count())
            .sum();
        let plain = crate::text_files::below(&chart::deploy()).unwrap();
        let of_programs = plain.iter().filter(|(path, _)| !path.starts_with("chart"));
        let named: usize = of_programs
            .flat_map(|(_, text)| text.lines())
            .filter(|line| {
                images()
                    .keys()
                    .any(|name| line.ends_with(&format!(": {name}")))
            })
            .count();
        assert_eq!(pinned, named, "each place has the digest");
    }

    #[test]
    fn an_image_of_no_release_is_named_with_its_file() {
        let values = text_file("values.yaml", "image:\n  repository: x\n");
        let error = check(&values, &TextFiles::new(), &images()).unwrap_err();
        assert!(
            error.to_string().contains("values.yaml names the image x"),
            "{error}"
        );
        let manifests = text_file("node/daemonset.yaml", "image: localhost/vmlet-node\n");
        let error = check(&text_file("values.yaml", "a: 1\n"), &manifests, &images()).unwrap_err();
        assert!(error.to_string().contains("node/daemonset.yaml"), "{error}");
    }

    /// Templates take their images from values, which are checked.
    #[test]
    fn no_template_of_the_chart_names_an_image_itself() {
        let templates = crate::text_files::below(&chart::folder().join("templates")).unwrap();
        for (path, text) in templates {
            for line in text.lines() {
                let image = line.trim().trim_start_matches("- ").strip_prefix("image: ");
                let image = image.unwrap_or("{{ include \"vmlet.image");
                assert!(
                    image.starts_with("{{ include \"vmlet.image"),
                    "{}: {line}",
                    path.display()
                );
            }
        }
    }
}
