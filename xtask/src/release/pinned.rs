//! Chart and manifests of a release: those of `deploy/`, with the digest of the image in the place of its tag.
//!
//! Invariant: nothing else of them changes but the version of the chart.
//! Failure: names the line that a file does not have.

use std::path::Path;

use anyhow::{Context, Result};

use super::source::Version;
use crate::text_files::{self, TextFiles};
use crate::{chart, node_image};

/// Folders of `deploy/` that are no manifests: the chart, and what image and packages are made of.
const LEFT_OUT: [&str; 3] = ["chart", "deb", "image"];

/// The files of the chart.
pub(crate) fn chart(version: &Version, digest: &str) -> Result<TextFiles> {
    let mut files = text_files::below(&chart::folder())?;
    edit(&mut files, "Chart.yaml", |text| {
        let text = replace(text, &["version: "], &format!("version: {version}"))?;
        replace(&text, &["appVersion: "], &format!("appVersion: {version}"))
    })?;
    edit(&mut files, "values.yaml", |text| {
        replace(
            text,
            &["image:", "  digest: "],
            &format!("  digest: {digest}"),
        )
    })?;
    Ok(files)
}

/// The manifests.
pub(crate) fn manifests(digest: &str) -> Result<TextFiles> {
    let mut files = text_files::below(&chart::deploy())?;
    files.retain(|path, _| !LEFT_OUT.iter().any(|folder| path.starts_with(folder)));
    for (path, text) in &mut files {
        if path.extension().is_some_and(|ending| ending == "yaml") {
            *text = pin(text, digest);
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

/// Names the image by its digest, in pods and in the list of images of a kustomization.
fn pin(text: &str, digest: &str) -> String {
    let image = format!("image: {}", node_image::NAME);
    let entry = format!("- name: {}", node_image::NAME);
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

    const DIGEST: &str = "sha256:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef";

    #[test]
    fn the_digest_takes_the_place_of_the_tag_and_other_images_stay() {
        let pod = "  - image: localhost/vmlet-node\n    image: localhost/vmlet-node\n    image: quay.io/x:1\n";
        let expected = format!(
            "  - image: localhost/vmlet-node@{DIGEST}\n    image: localhost/vmlet-node@{DIGEST}\n    image: quay.io/x:1\n"
        );
        assert_eq!(pin(pod, DIGEST), expected);
        let list = "images:\n  - name: x\n    newTag: 1\n  - name: localhost/vmlet-node\n    newTag: 0.1.0\n";
        let expected = format!(
            "images:\n  - name: x\n    newTag: 1\n  - name: localhost/vmlet-node\n    digest: {DIGEST}\n"
        );
        assert_eq!(pin(list, DIGEST), expected);
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
    fn the_chart_has_the_version_and_the_digest() {
        let version = Version::snapshot("0.2.0", &Commit::read().unwrap());
        let chart = chart(&version, DIGEST).unwrap();
        let lines: Vec<_> = chart[Path::new("Chart.yaml")].lines().collect();
        for key in ["version", "appVersion"] {
            assert!(
                lines.contains(&format!("{key}: {version}").as_str()),
                "{key}"
            );
        }
        let values: serde_json::Value =
            serde_saphyr::from_str(&chart[Path::new("values.yaml")]).unwrap();
        assert_eq!(values["image"]["digest"], DIGEST);
        assert_eq!(values["monitoring"]["nodeMetrics"]["image"]["digest"], "");
    }
}
