//! The list of the stacks that a test has started, by which the runner takes them down after it
//! killed the test.
//!
//! Invariant: a stack is in the list before anything of it runs.
//! Failure: without its list a stack is not started. A stack that cannot be taken down is named.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Layout;
use crate::run;

/// The variable that has the path of the list.
pub(crate) const VARIABLE: &str = "VMLET_TEST_STACKS";

/// A cluster of several nodes takes a minute on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Adds a stack to the list, if there is one.
pub(super) fn add(layout: &Layout) -> Result<()> {
    match std::env::var_os(VARIABLE) {
        Some(list) => add_to(Path::new(&list), layout.dir()),
        None => Ok(()),
    }
}

fn add_to(list: &Path, dir: &Path) -> Result<()> {
    let file = File::options().append(true).create(true).open(list);
    file.and_then(|mut file| writeln!(file, "{}", dir.display()))
        .with_context(|| format!("add a stack to {}", list.display()))
}

/// Takes down the stacks of a list that still exist; returns a text about each.
pub(crate) fn take_down_list(list: &Path) -> Vec<String> {
    let dirs = existing(list);
    let take_down = |dir: &String| match take_down(dir) {
        Ok(text) => format!("the stack in {dir}: {text}"),
        Err(error) => format!("the stack in {dir} cannot be taken down: {error:#}"),
    };
    dirs.iter().map(take_down).collect()
}

/// The stacks of a list that still exist, the last one first.
pub(crate) fn existing(list: &Path) -> Vec<String> {
    let text = fs::read_to_string(list).unwrap_or_default();
    let dirs = text.lines().rev().filter(|dir| Path::new(dir).exists());
    dirs.map(str::to_owned).collect()
}

/// A process of its own, since it may hang as the test did.
fn take_down(dir: &str) -> Result<String> {
    let mut down = run::myself_as_root()?;
    let output = run::capture_within(down.args(["down", "--dir", dir]), TIMEOUT)?;
    let output = output.context("it did not end by its deadline")?;
    // The test's own folder, in which nothing is left now.
    let _ = Path::new(dir).parent().map(fs::remove_dir);
    let text = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_stacks_that_still_exist_are_taken_down_and_the_last_one_first() {
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join("stacks");
        assert_eq!(existing(&list), Vec::<String>::new());
        let stacks = ["a", "b", "c"].map(|name| dir.path().join(name));
        for stack in &stacks {
            add_to(&list, stack).unwrap();
        }
        for stack in [&stacks[0], &stacks[2]] {
            fs::create_dir(stack).unwrap();
        }
        let expected = [&stacks[2], &stacks[0]].map(|stack| stack.display().to_string());
        assert_eq!(existing(&list), expected);
    }
}
