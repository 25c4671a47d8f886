//! The notes of a version in the changelog.
//!
//! Invariant: the notes are the lines below the heading of the version, up to the next version.
//! Failure: names the version that has no heading, or nothing below it.

use anyhow::{Context, Result, ensure};

/// The heading of what no version has yet.
pub(crate) const UNRELEASED: &str = "Unreleased";

/// The notes below `## [NAME]`.
pub(crate) fn section(changelog: &str, name: &str) -> Result<String> {
    let heading = format!("## [{name}]");
    let mut lines = changelog.lines();
    lines
        .find(|line| line.starts_with(&heading))
        .with_context(|| {
            format!(
                "CHANGELOG.md has no section {heading}: give {UNRELEASED} the number and a date, or make a build that \
                 is no release by --snapshot"
            )
        })?;
    let lines = lines.take_while(|line| !line.starts_with("## ") && !is_link(line));
    let notes = lines.collect::<Vec<_>>().join("\n");
    let notes = notes.trim();
    ensure!(!notes.is_empty(), "{heading} of CHANGELOG.md is empty");
    Ok(notes.to_owned())
}

/// What a heading in brackets leads to, at the end of a changelog.
fn is_link(line: &str) -> bool {
    line.starts_with('[') && line.contains("]: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGELOG: &str = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-11-28\n\n### Added\n\n\
                             - A thing ([docs](docs/x.md)).\n\n## [0.1.0] - 2026-01-01\n\n- First.\n\n\
                             [0.2.0]: https://vmlet.dev/0.2.0\n";

    #[test]
    fn notes_end_where_the_next_version_or_the_links_begin() {
        let notes = section(CHANGELOG, "0.2.0").unwrap();
        assert_eq!(notes, "### Added\n\n- A thing ([docs](docs/x.md)).");
        assert_eq!(section(CHANGELOG, "0.1.0").unwrap(), "- First.");
    }

    #[test]
    fn a_version_without_notes_is_refused_with_the_way_out() {
        let error = section(CHANGELOG, "0.3.0").unwrap_err().to_string();
        assert!(
            error.contains("[0.3.0]") && error.contains("--snapshot"),
            "{error}"
        );
        let error = section(CHANGELOG, UNRELEASED).unwrap_err().to_string();
        assert!(error.contains("is empty"), "{error}");
    }
}
