//! Chart and manifests of a release: those of `deploy/`, with the digests of the images in the place of their tags.
//!
//! Invariant: nothing else of them changes but the version of the chart.
//! Failure: names the line that a file does not have.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

use super::source::Version;
use crate::chart;
use crate::text_files::{self, TextFiles};

/// Folders of `deploy/` that are no manifests: the chart, and what image and packages are made of.
const LEFT_OUT: [&str; 3] = ["chart", "deb", "image"];

/// Names of images, each with its digest.
pub(crate) type Digests = BTreeMap<String, String>;

/// Where the values of the chart have the digest of an image.
const VALUES: [(&str, &[&str]); 3] = [
    ("localhost/vmlet-node", &["image:", "  digest: "]),
    (
        "localhost/vmlet-controller",
        &["image:", "  controller:", "    digest: "],
    ),
    (
        "localhost/vmlet-agent",
        &["image:", "  agent:", "    digest: "],
    ),
];

/// The files of the chart.
pub(crate) fn chart(version: &Version, digests: &Digests) -> Result<TextFiles> {
    let mut files = text_files::below(&chart::folder())?;
    edit(&mut files, "Chart.yaml", |text| {
        let text = replace(text, &["version: "], &format!("version: {version}"))?;
        replace(&text, &["appVersion: "], &format!("appVersion: {version}"))
    })?;
    for (image, place) in VALUES {
        let digest = digests
            .get(image)
            .with_context(|| format!("the release has no image {image}"))?;
        let line = place.last().copied().unwrap_or_default();
        edit(&mut files, "values.yaml", |text| {
            replace(text, place, &format!("{line}{digest}"))
        })?;
    }
    Ok(files)
}

/// The manifests.
pub(crate) fn manifests(digests: &Digests) -> Result<TextFiles> {
    let mut files = text_files::below(&chart::deploy())?;
    files.retain(|path, _| !LEFT_OUT.iter().any(|folder| path.starts_with(folder)));
    for (path, text) in &mut files {
        if path.extension().is_some_and(|ending| ending == "yaml") {
            for (image, digest) in digests {
                *text = pin(text, image, digest);
            }
        }
    }
    Ok(files)
}

fn edit(
    files: &mut TextFiles,
    name: &str,
    change: impl FnOnce(&str) -> Result<String>,
) -> Result<()> {
    let text = files.get_mut(Path::new(name));
    let text = text.with_context(|| format!("the chart has no {name}"))?;
    *text = change(text).with_context(|| format!("change {name} of the chart"))?;
    Ok(())
}

/// Replaces the line with the last of these beginnings, after lines with the others in their order.
fn replace(text: &str, beginnings: &[&str], with: &str) -> Result<String> {
    let mut lines: Vec<_> = text.lines().collect();
    let mut at = 0;
    for beginning in beginnings {
        let found = lines
            .iter()
            .skip(at)
            .position(|line| line.starts_with(beginning));
        at += found.with_context(|| format!("no line begins with {beginning:?}"))?;
    }
    if let Some(line) = lines.get_mut(at) {
        *line = with;
    }
    Ok(lines.join("\n") + "\n")
}

/// Names an image by its digest, in pods and in the list of images of a kustomization.
fn pin(text: &str, name: &str, digest: &str) -> String {
    let image = format!("image: {name}");
    let entry = format!("- name: {name}");
    let mut pinned = String::with_capacity(text.len());
    let mut before = "";
    for line in text.lines() {
        let indentation = &line[..line.len() - line.trim_start().len()];
        if line.trim().trim_start_matches("- ") == image {
            pinned.push_str(&format!("{line}@{digest}"));
        } else if line.trim().starts_with("newTag: ") && before.trim() == entry {
            pinned.push_str(&format!("{indentation}digest: {digest}"));
        } else {
            pinned.push_str(line);
        }
        pinned.push('\n');
        before = line;
    }
    pinned
}

#[cfg(test)]
mod tests {
    use super::super::source::Commit;
    use super::*;

    const NODE: &str = "localhost/vmlet-node";
    const DIGEST: &str = "sha256:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef";

    #[test]
    fn the_digest_takes_the_place_of_the_tag_and_other_images_stay() {
        let pod = "  - image: localhost/vmlet-node\n    image: localhost/vmlet-node\n    image: quay.io/x:1\n";
        let expected = format!(
            "  - image: localhost/vmlet-node@{DIGEST}\n    image: localhost/vmlet-node@{DIGEST}\n    image: quay.io/x:1\n"
        );
        assert_eq!(pin(pod, NODE, DIGEST), expected);
        let list = "images:\n  - name: x\n    newTag: 1\n  - name: localhost/vmlet-node\n    newTag: 0.1.0\n";
        let expected = format!(
            "images:\n  - name: x\n    newTag: 1\n  - name: localhost/vmlet-node\n    digest: {DIGEST}\n"
        );
        assert_eq!(pin(list, NODE, DIGEST), expected);
        assert_eq!(pin(list, "localhost/vmlet", DIGEST), list);
    }

    #[test]
    fn only_the_value_of_the_image_itself_is_changed() {
        let values = "a: 1\nimage:\n  tag: \"\"\n  digest: \"\"\nother:\n  digest: \"\"\n";
        let changed = replace(values, &["image:", "  digest: "], "  digest: x").unwrap();
        assert_eq!(
            changed,
            "a: 1\nimage:\n  tag: \"\"\n  digest: x\nother:\n  digest: \"\"\n"
        );
        let error = replace("a: 1\n", &["image:"], "").unwrap_err().to_string();
        assert!(error.contains("image:"), "{error}");
    }

    #[test]
    fn the_chart_has_the_version_and_the_digests() {
        let version = Version::snapshot("0.2.0", &Commit::read().unwrap());
        let names = ["node", "controller", "agent"];
        let digests =
            names.map(|name| (format!("localhost/vmlet-{name}"), format!("{DIGEST}{name}")));
        let mut digests = Digests::from(digests);
        let chart = chart(&version, &digests).unwrap();
        let lines: Vec<_> = chart[Path::new("Chart.yaml")].lines().collect();
        for key in ["version", "appVersion"] {
            assert!(
                lines.contains(&format!("{key}: {version}").as_str()),
                "{key}"
            );
        }
        let values: serde_json::Value =
            serde_saphyr::from_str(&chart[Path::new("values.yaml")]).unwrap();
        let image = &values["image"];
        let found = [
            &image["digest"],
            &image["controller"]["digest"],
            &image["agent"]["digest"],
        ];
        assert_eq!(
            found,
            names.map(|name| format!("{DIGEST}{name}")).each_ref()
        );
        assert_eq!(values["monitoring"]["nodeMetrics"]["image"]["digest"], "");
        digests.remove("localhost/vmlet-agent");
        let error = super::chart(&version, &digests).unwrap_err().to_string();
        assert!(error.ends_with("no image localhost/vmlet-agent"), "{error}");
    }
}
