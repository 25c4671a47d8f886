//! Files that get a name for good are on the disk with it, or a power cut may take them.
//!
//! Invariant: programs name files by `service::files`, whose tests cut the power. A source that calls the
//! kernel itself is listed here, with what syncs the name and a test of that, or with why it is not needed afterwards.
//! Failure: the source that is new, or listed in vain.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::sources::sources;
use crate::workspace::root;

/// What gives a file a name that another program, or the next start, finds it by.
const CALLS: [&str; 5] = [
    "fs::rename(",
    "renameat(",
    "renameat2(",
    "linkat(",
    "hard_link(",
];

/// Sources that sync the directory themselves; each has a test with `testfs`.
const SYNCED: [&str; 8] = [
    "cli/src/commands/export/destination.rs",
    "installer/src/root.rs",
    "libs/cni/src/cache.rs",
    "libs/service/src/files.rs",
    "src/backup/directory.rs",
    "src/disk/snapshots/doubt.rs",
    "src/disk/snapshots/memory.rs",
    "src/vm/file_disks/place.rs",
];

/// Sources whose names may be lost, and why.
const LOST: [(&str, &str); 10] = [
    ("libs/fdpass/src/listener.rs", "a socket"),
    ("libs/service/src/listener.rs", "a socket"),
    (
        "src/images/partial.rs",
        "the note of a download, which no other boot continues",
    ),
    (
        "src/vm/console/position.rs",
        "how far the console of a guest of this boot was read",
    ),
    (
        "src/vm/disks/overlay.rs",
        "the disk of a pod, whose sandbox ends with the boot",
    ),
    ("src/vm/disks/replace.rs", "as that"),
    (
        "src/vm/disks/seed.rs",
        "it is made again; of a guest that is saved, the name of its memory is synced in the same directory",
    ),
    (
        "src/vm/host/accelerator/cache.rs",
        "the answer of a probe, which is made again",
    ),
    (
        "src/vm/process/create.rs",
        "settings of a process, which ends with the boot",
    ),
    ("src/vm/process/log.rs", "the position in its log"),
];

/// Folders of programs that run on nodes and of their libraries.
const FOLDERS: [&str; 10] = [
    "agent/src",
    "cli/src",
    "controller/src",
    "criproxy/src",
    "installer/src",
    "libs",
    "src",
    "tapmanager/src",
    "virtiofsd/src",
    "vmwrapper/src",
];

/// Whether a source names files outside of its tests.
fn names_files(source: &str) -> bool {
    let code = source.split("#[cfg(test)]\nmod tests {").next();
    let code = code.unwrap_or_default();
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let mut lines = code.lines().filter(is_code);
    lines.any(|line| CALLS.iter().any(|call| line.contains(call)))
}

#[test]
fn every_name_for_good_is_synced_or_may_be_lost() {
    let mut files = BTreeSet::new();
    for folder in FOLDERS {
        sources(&root().join(folder), &mut files);
    }
    let of_tests = ["tests", "testkit", "testfs", "/fake", "fuzzing"];
    let mut found = BTreeSet::new();
    for file in files {
        let name = file.strip_prefix(root()).unwrap_or(Path::new(""));
        let name = name.to_str().unwrap_or_default().to_owned();
        let is_of_tests = of_tests.iter().any(|part| name.contains(part));
        if !is_of_tests && names_files(&fs::read_to_string(&file).unwrap()) {
            found.insert(name);
        }
    }
    let lost = LOST.iter().map(|(name, _)| *name);
    let listed: BTreeSet<_> = SYNCED.into_iter().chain(lost).map(str::to_owned).collect();
    let new: Vec<_> = found.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&found).collect();
    assert!(
        new.is_empty() && gone.is_empty(),
        "use service::files, or list {new:?}; {gone:?} name no files any more"
    );
}

#[test]
fn comments_and_tests_name_no_files() {
    assert!(names_files("fn a() {\n    std::fs::rename(a, b)?;\n}\n"));
    assert!(!names_files("/// As fs::rename(a, b).\n"));
    assert!(!names_files(
        "#[cfg(test)]\nmod tests {\n    fs::rename(a, b)\n}\n"
    ));
}
