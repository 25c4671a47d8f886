//! Panics of our programs, which a restart by a supervisor would hide.
//!
//! Invariant: every log of the stack is read but those of programs that are not ours.
//! Failure: a folder of logs that is absent has none; a log that cannot be read is an error.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result};

use super::Leak;
use crate::stack::Layout;

/// The beginnings of the names of other programs' logs.
const FOREIGN: [&str; 5] = ["libvirtd", "etcd", "kube-", "kubelet", "containerd"];
/// What the standard library prints.
const PANIC: &[u8] = b"panicked at ";

/// The first panic in each log.
pub(super) fn find(layout: &Layout) -> Result<Vec<Leak>> {
    let folder = layout.path("log");
    let Ok(entries) = fs::read_dir(&folder) else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for entry in entries {
        let file = entry.context("list the logs")?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if FOREIGN.iter().any(|program| name.starts_with(program)) {
            continue;
        }
        if let Some(line) = first(&file).with_context(|| format!("read {}", file.display()))? {
            found.push(Leak::new("panic", format!("in {name}: {line}")));
        }
    }
    Ok(found)
}

fn first(file: &Path) -> std::io::Result<Option<String>> {
    for line in BufReader::new(File::open(file)?).split(b'\n') {
        let line = line?;
        if line.windows(PANIC.len()).any(|part| part == PANIC) {
            return Ok(Some(String::from_utf8_lossy(&line).into_owned()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_found_in_our_logs_and_in_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::existing(dir.path()).unwrap();
        fs::create_dir(layout.path("log")).unwrap();
        let log = |name: &str, text: &str| fs::write(layout.log(name), text).unwrap();
        log("kubelet", "panicked at x.go");
        log("leader-1", "fine\n");
        assert_eq!(find(&layout).unwrap(), []);
        log(
            "vmlet",
            "fine\nthread 'a' panicked at src/x.rs:1:2:\nboom\n",
        );
        let panic = "in vmlet.log: thread 'a' panicked at src/x.rs:1:2:";
        assert_eq!(find(&layout).unwrap(), [Leak::new("panic", panic)]);
    }
}
