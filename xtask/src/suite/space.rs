//! The disk space that a run takes; looked at before anything is built.
//!
//! Invariant: what an earlier build left counts as space that is there. The figures are those of runs on
//! two processors: a run that may need more than is free is warned of, and begins.
//! Failure: a run that cannot pass, since next to nothing is free, is refused with what it takes and what
//! is free; a file system that does not report its free space refuses nothing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, absolute};

use anyhow::{Result, ensure};
use nix::sys::statvfs::statvfs;
use nix::unistd::geteuid;

use super::order::Order;
use super::part::Part;
use crate::workspace;

const GIB: u64 = 1 << 30;
/// Programs, tools and guest images of a build as in CI, which keeps nothing for the next one.
const BUILD: u64 = 14 * GIB;
/// The same with line numbers and with what makes the next build quick.
const INCREMENTAL_BUILD: u64 = 20 * GIB;
/// Caches of Go in the home directory, for the tools of clusters.
const GO: u64 = 6 * GIB;
/// Where stacks and clusters have their disks and images.
const SCRATCH: &str = "/tmp";
/// Stacks and clusters of an ordinary run.
const TESTS: u64 = 4 * GIB;
/// Those of the long forms.
const LONG_TESTS: u64 = 12 * GIB;
/// Those of tests by name.
const NAMED_TESTS: u64 = GIB;
/// With less than this no build and no cluster ends.
const FLOOR: u64 = 2 * GIB;

/// What a run takes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Need {
    /// In the build folder and in the home directory, less what is there.
    build: u64,
    /// In the scratch folder.
    tests: u64,
}

/// The free space of a file system, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Free {
    /// For every user.
    available: u64,
    /// For this process: root may fill what is reserved.
    writable: u64,
    /// Number of the file system.
    device: u64,
}

/// The free space of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    build: Free,
    scratch: Free,
}

/// States what the run takes; an error if next to nothing is free.
pub(super) fn check(order: &Order) -> Result<()> {
    if !order.parts.iter().any(|part| part.needs_programs()) {
        return Ok(());
    }
    let need = Need::of_run(order, missing_build());
    let Some(place) = Place::now() else {
        return Ok(());
    };
    let sentence = need.sentence(&place, &workspace::target());
    ensure!(
        need.can_begin(&place),
        "{sentence}; free some space, or let CARGO_TARGET_DIR name a folder on another file system"
    );
    println!("{sentence}");
    if !need.fits(&place) {
        println!("warning: that is less than a run takes, which may fail for lack of space");
    }
    Ok(())
}

/// What a whole run takes, for a person who has not begun one; `None` when nothing reports what is
/// free.
pub(crate) fn statement() -> Option<String> {
    let need = Need {
        build: missing_build(),
        tests: TESTS,
    };
    Place::now().map(|place| need.sentence(&place, &workspace::target()))
}

impl Need {
    fn of_run(order: &Order, build: u64) -> Self {
        let has_stacks = order.parts.iter().any(|part: &Part| part.has_stacks());
        let tests = if !has_stacks {
            0
        } else if !order.names.is_empty() {
            NAMED_TESTS
        } else if order.long {
            LONG_TESTS
        } else {
            TESTS
        };
        Self { build, tests }
    }

    /// Whether all of it is free.
    const fn fits(&self, place: &Place) -> bool {
        if place.build.device == place.scratch.device {
            return self.build + self.tests <= place.build.available;
        }
        self.build <= place.build.available && self.tests <= place.scratch.available
    }

    /// Whether anything is free where something is needed.
    const fn can_begin(&self, place: &Place) -> bool {
        let can_build = self.build == 0 || place.build.writable >= FLOOR;
        can_build && (self.tests == 0 || place.scratch.writable >= FLOOR)
    }

    fn sentence(&self, place: &Place, target: &Path) -> String {
        let free = if place.build.device == place.scratch.device {
            whole_gib(place.build.available)
        } else {
            let scratch = whole_gib(place.scratch.available);
            format!("{} and {scratch}", whole_gib(place.build.available))
        };
        format!(
            "a run takes about {} more in {} and {} in {SCRATCH}; {free} are free",
            gib(self.build),
            target.display(),
            gib(self.tests),
        )
    }
}

impl Place {
    fn now() -> Option<Self> {
        let target = absolute(workspace::target()).ok()?;
        let target = target.ancestors().find(|folder| folder.exists())?;
        Some(Self {
            build: Free::of_folder(target)?,
            scratch: Free::of_folder(Path::new(SCRATCH))?,
        })
    }
}

impl Free {
    fn of_folder(folder: &Path) -> Option<Self> {
        let found = statvfs(folder).ok().filter(|found| found.blocks() > 0)?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.fragment_size());
        let available = bytes(found.blocks_available());
        let writable = if geteuid().is_root() {
            bytes(found.blocks_free()).max(available)
        } else {
            available
        };
        Some(Self {
            available,
            writable,
            device: fs::metadata(folder).ok()?.dev(),
        })
    }
}

/// What a whole build takes beside what is there.
fn missing_build() -> u64 {
    let is_incremental = std::env::var("CARGO_INCREMENTAL").as_deref() != Ok("0");
    let whole = if is_incremental {
        INCREMENTAL_BUILD
    } else {
        BUILD
    };
    let tools = if workspace::tools_bin().exists() {
        0
    } else {
        GO
    };
    whole.saturating_sub(size(&workspace::target())) + tools
}

/// What a folder and all below it take, in bytes; what is removed meanwhile takes nothing.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => size(&entry.path()),
        Ok(found) => found.blocks().saturating_mul(512),
        Err(_) => 0,
    });
    sizes.sum()
}

/// What is needed, rounded up.
fn gib(bytes: u64) -> String {
    format!("{} GiB", bytes.div_ceil(GIB))
}

/// What is free, rounded down.
fn whole_gib(bytes: u64) -> String {
    format!("{} GiB", bytes / GIB)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// A file system with so many GiB, and as much again for root.
    fn free(gib: u64, device: u64) -> Free {
        Free {
            available: gib * GIB,
            writable: 2 * gib * GIB,
            device,
        }
    }

    fn shared(gib: u64) -> Place {
        let build = free(gib, 1);
        let scratch = build;
        Place { build, scratch }
    }

    const NEED: Need = Need {
        build: 14 * GIB,
        tests: 4 * GIB,
    };

    #[test]
    fn one_file_system_holds_both_and_only_an_empty_one_refuses() {
        assert!(NEED.fits(&shared(18)));
        assert!(!NEED.fits(&shared(17)) && NEED.can_begin(&shared(17)));
        assert!(NEED.can_begin(&shared(1)) && !NEED.can_begin(&shared(0)));
        let scratch = free(40, 2);
        let build = free(13, 1);
        assert!(!NEED.fits(&Place { build, scratch }));
        let tiny = Place {
            build: scratch,
            scratch: free(0, 3),
        };
        assert!(!NEED.can_begin(&tiny));
        assert!(Need { tests: 0, ..NEED }.can_begin(&tiny));
        assert!(Need { build: 0, tests: 0 }.can_begin(&shared(0)));
    }

    #[rstest]
    #[case::whole(Part::all(), &[], false, 4)]
    #[case::long(Part::all(), &[], true, 12)]
    #[case::named(Part::all(), &["clusters::basic"], true, 1)]
    #[case::of_crates(&[Part::Unit], &[], false, 0)]
    fn a_run_takes_what_its_tests_take(
        #[case] parts: &[Part],
        #[case] names: &[&str],
        #[case] long: bool,
        #[case] expected: u64,
    ) {
        let order = Order {
            parts: parts.to_vec(),
            names: names.iter().map(ToString::to_string).collect(),
            selection: None,
            repeat: 1,
            load: 0,
            long,
            keep: false,
        };
        let need = Need::of_run(&order, 7);
        assert_eq!((need.build, need.tests), (7, expected * GIB));
    }

    #[test]
    fn the_sentence_has_what_is_needed_and_what_is_free() {
        let need = Need {
            build: 5 * GIB + 1,
            tests: 4 * GIB,
        };
        assert_eq!(
            need.sentence(&shared(3), Path::new("/t")),
            "a run takes about 6 GiB more in /t and 4 GiB in /tmp; 3 GiB are free"
        );
    }

    #[test]
    fn a_folder_takes_what_its_files_take() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        let file = below.join("file");
        fs::write(&file, vec![1; 64 << 10]).unwrap();
        let blocks = fs::metadata(&file).unwrap().blocks();
        assert_eq!(size(folder.path()), blocks * 512);
        assert_eq!(size(&folder.path().join("absent")), 0);
    }
}
