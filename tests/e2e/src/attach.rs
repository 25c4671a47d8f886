//! Stacks that outlive their test (`cargo xtask test NAME --keep`), and the use of one that is up.
//!
//! Invariant: no test takes down a stack that is kept, or that it did not start. A stack serves one test at a
//! time, which finds nothing of pods in it and the programs of the current build.
//! Failure: an error says how the stack differs from what the test needs, or what is left in it.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::stack::{Stack, programs};

/// Set: a stack stays when its test ends.
const KEEP: &str = "VMLET_TEST_KEEP";
/// The directory of the stack that the next test uses instead of starting one.
const STACK: &str = "VMLET_TEST_STACK";
/// Below that directory; locked by the test that uses the stack.
const LOCK: &str = "test.lock";

/// Whether stacks stay.
pub(crate) fn is_kept() -> bool {
    std::env::var_os(KEEP).is_some()
}

/// The directory of the stack to use, if one is named.
pub(crate) fn named() -> Option<PathBuf> {
    std::env::var_os(STACK).map(PathBuf::from)
}

/// Prints how to use and to remove a stack that stays.
pub(crate) fn print_usage(dir: &Path) {
    let dir = dir.display();
    eprintln!(
        "--- the stack stays: `. {dir}/env.sh` for its programs, `{STACK}={dir} cargo xtask test NAME` for another \
         test in it, `cargo xtask down --dir {dir}` to remove it"
    );
}

/// Claims the stack in `dir` for this process, for a test that needs one with these options of `cargo xtask
/// up`; the claim ends with the file.
pub(crate) fn claim(dir: &Path, options: &[&str]) -> Result<File> {
    let record = dir.join("stack.json");
    let text = fs::read_to_string(&record)
        .with_context(|| format!("{STACK}: there is no stack in {}", dir.display()))?;
    let record = serde_json::from_str(&text).context("parse the record of the stack")?;
    fits(&record, nodes(dir), options)
        .with_context(|| format!("{STACK}: the stack in {}", dir.display()))?;
    same_programs(&dir.join("bin"), &programs()?)?;
    let lock = File::create(dir.join(LOCK)).context("open the lock of the stack")?;
    lock.try_lock().with_context(|| {
        let dir = dir.display();
        format!("another test uses the stack in {dir}; name one test that starts one stack")
    })?;
    Ok(lock)
}

/// An error if pods of an earlier test are left.
pub(crate) fn ensure_empty(stack: &Stack) -> Result<()> {
    let left = stack.leftovers()?;
    ensure!(
        left.is_empty(),
        "the stack in {} is not empty, remove what an earlier test left: {left:?}",
        stack.dir().display()
    );
    Ok(())
}

/// How many nodes the cluster in a directory has.
fn nodes(dir: &Path) -> usize {
    let further = (2..).take_while(|number| dir.join(format!("node{number}")).exists());
    1 + further.count()
}

/// Whether a stack has what `cargo xtask up` makes by these options.
fn fits(record: &Value, nodes: usize, options: &[&str]) -> Result<()> {
    let has = |option| options.contains(&option);
    ensure!(
        !has("--no-node"),
        "serves no test of an API server alone, which starts in seconds"
    );
    let needed = if has("--no-vmlet") {
        "Deployed"
    } else if has("--containerd") {
        "Runtimes"
    } else if has("--cluster") {
        "Vmlet"
    } else {
        "none"
    };
    let kind = record["node"]["guests"].as_str().unwrap_or("none");
    let after = options
        .iter()
        .skip_while(|option| **option != "--nodes")
        .nth(1);
    let needed_nodes = after.map_or(Ok(1), |count| count.parse())?;
    let has_registries = record["registries"] == true;
    if kind != needed || nodes != needed_nodes || has("--registries") && !has_registries {
        bail!(
            "is another one than the test needs: start one by `cargo xtask up --dir DIR {}`",
            options.join(" ")
        );
    }
    Ok(())
}

/// An error if the stack's copy of a program is not that of the build: what a test shows is to be about the
/// sources.
fn same_programs(of_stack: &Path, built: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(of_stack) else {
        // An API server alone has none.
        return Ok(());
    };
    for entry in entries {
        let entry = entry?;
        let program = built.join(entry.file_name());
        if !entry.file_type()?.is_file() || !program.is_file() {
            continue;
        }
        // In most stacks a program is the built file under another name.
        let one = entry.metadata()?;
        let other = fs::metadata(&program)?;
        if one.ino() == other.ino() && one.dev() == other.dev() {
            continue;
        }
        let copy = fs::read(entry.path()).context("read a program of the stack")?;
        let current = fs::read(&program).context("read a program of the build")?;
        ensure!(
            copy == current,
            "the stack has {} of another build: take it down and start a new one",
            entry.path().display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_stack_serves_tests_that_need_one_of_its_kind() {
        let alone = json!({ "registries": true, "node": null });
        assert!(fits(&alone, 1, &[]).is_ok());
        assert!(fits(&alone, 1, &["--registries"]).is_ok());
        let plain = json!({ "registries": false, "node": null });
        let error = fits(&plain, 1, &["--registries"]).unwrap_err().to_string();
        assert!(error.contains("up --dir DIR --registries"), "{error}");
        let cluster = json!({ "registries": false, "node": { "guests": "Vmlet" } });
        assert!(fits(&cluster, 2, &["--cluster", "--nodes", "2"]).is_ok());
        assert!(fits(&cluster, 1, &["--cluster", "--nodes", "2"]).is_err());
        assert!(fits(&cluster, 1, &[]).is_err());
        for option in ["--no-node", "--no-vmlet", "--containerd"] {
            assert!(fits(&cluster, 1, &["--cluster", option]).is_err());
        }
    }

    #[test]
    fn a_stack_with_programs_of_another_build_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let of_stack = dir.path().join("bin");
        let built = dir.path().join("debug");
        for folder in [&of_stack, &built] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("vmlet"), "a").unwrap();
        }
        fs::write(of_stack.join("vmlet-guest"), "is built elsewhere").unwrap();
        same_programs(&of_stack, &built).unwrap();
        fs::write(built.join("vmlet"), "b").unwrap();
        let error = same_programs(&of_stack, &built).unwrap_err().to_string();
        assert!(error.contains("bin/vmlet of another build"), "{error}");
    }

    #[test]
    fn a_stack_serves_one_test_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        assert!(claim(dir.path(), &[]).is_err(), "there is no stack");
        fs::write(dir.path().join("stack.json"), "{}").unwrap();
        let first = claim(dir.path(), &[]).unwrap();
        let second = claim(dir.path(), &[]).unwrap_err().to_string();
        assert!(second.contains("another test uses"), "{second}");
        drop(first);
        claim(dir.path(), &[]).unwrap();
    }
}
