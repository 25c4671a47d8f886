//! Files that differ from a commit, and the sources of the workspace.
//!
//! Invariant: paths are relative to the top folder; a file that was renamed is there under both names.
//! Failure: git does not answer, or the reference is no commit.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::run;

/// Folders without sources of ours.
const ELSEWHERE: [&str; 3] = ["target", ".git", "corpus"];

/// The files that differ from where `reference` and this checkout were last the same, and those that git does
/// not know.
pub(super) fn since(root: &Path, reference: &str) -> Result<Vec<String>> {
    let commit = format!("{reference}^{{commit}}");
    let mut parse = git(root, &["rev-parse", "--verify", "--quiet"]);
    parse.args(["--end-of-options", &commit]);
    let commit = run::output(&mut parse)
        .with_context(|| format!("{reference} is no commit: name one, such as HEAD or main"))?;
    let mut base = git(root, &["merge-base", "HEAD", commit.trim()]);
    let base = run::output(&mut base).context("find where the histories parted")?;
    let changed = [
        &["diff", "--name-only", "--no-renames", "-z", base.trim()][..],
        &["ls-files", "--others", "--exclude-standard", "-z"],
    ];
    let mut files = Vec::new();
    for arguments in changed {
        let listed = run::output(&mut git(root, arguments)).context("list what changed")?;
        let names = listed.split('\0').filter(|name| !name.is_empty());
        files.extend(names.map(str::to_owned));
    }
    files.sort();
    Ok(files)
}

fn git(root: &Path, arguments: &[&str]) -> Command {
    let mut git = run::command("git");
    git.current_dir(root).args(arguments);
    git
}

/// Whether it is a source of Rust.
pub(super) fn is_source(file: &str) -> bool {
    Path::new(file).extension().is_some_and(|end| end == "rs")
}

/// The sources below the top folder, with their text.
pub(super) fn sources(root: &Path) -> Result<BTreeMap<String, String>> {
    let mut sources = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let shown = folder.display().to_string();
        for entry in fs::read_dir(&folder).with_context(|| format!("read {shown}"))? {
            let entry = entry.with_context(|| format!("read {shown}"))?;
            let path = entry.path();
            let kind = entry.file_type()?;
            let name = entry.file_name();
            if kind.is_dir() && !ELSEWHERE.iter().any(|other| name == *other) {
                folders.push(path);
            } else if kind.is_file() && is_source(&name.to_string_lossy()) {
                let text = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
                let relative = path.strip_prefix(root).unwrap_or(&path);
                let relative = relative.to_string_lossy().into_owned();
                sources.insert(relative, String::from_utf8_lossy(&text).into_owned());
            }
        }
    }
    Ok(sources)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_edits_and_new_files_differ_and_a_renamed_file_by_both_names() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let git = |arguments: &[&str]| {
            let settings = ["user.name=x", "user.email=x", "commit.gpgsign=false"];
            let mut git = git(root, &[]);
            for one in settings {
                git.args(["-c", one]);
            }
            run::output(git.args(arguments)).unwrap()
        };
        git(&["init", "--quiet", "--initial-branch=main"]);
        for (file, text) in [("a", "1"), ("b", "a longer text"), (".gitignore", "e\n")] {
            fs::write(root.join(file), text).unwrap();
        }
        git(&["add", "."]);
        git(&["commit", "--quiet", "--message=first"]);
        git(&["checkout", "--quiet", "-b", "other"]);
        git(&["mv", "b", "c"]);
        git(&["commit", "--quiet", "--message=second"]);
        fs::write(root.join("a"), "2").unwrap();
        for file in ["d", "e"] {
            fs::write(root.join(file), "").unwrap();
        }
        assert_eq!(since(root, "HEAD").unwrap(), ["a", "d"]);
        assert_eq!(since(root, "main").unwrap(), ["a", "b", "c", "d"]);
        let refused = format!("{:#}", since(root, "none").unwrap_err());
        assert!(refused.contains("none is no commit"), "{refused}");
    }
}
