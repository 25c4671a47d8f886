//! File systems that an agent left frozen when it was killed together with its watchdog.
//!
//! Invariant: their mount points are recorded before they are frozen, and the record is removed after they are
//! thawed, and the programs of the guest have run.
//! Failure: none; in a guest that has no place for the record, its watchdog alone thaws.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::Freezing;
use crate::mounts::{self, Point};
use crate::sys;

/// Ends a path of the record.
const END: u8 = 0;

/// Records what is about to be frozen.
pub(super) fn record(file: &Path, points: &[Point]) {
    let paths = points
        .iter()
        .flat_map(|point| point.path.bytes().chain([END]));
    let paths: Vec<u8> = paths.collect();
    let folder = file.parent().map_or(Ok(()), fs::create_dir_all);
    // The watchdog is there without it.
    let _ = folder.and_then(|()| fs::write(file, paths));
}

/// Thaws what an earlier agent has left frozen.
pub(crate) fn thaw_left(of: &Freezing) {
    let Ok(paths) = fs::read(&of.record) else {
        return;
    };
    let paths = paths.split(|byte| *byte == END).rev();
    for path in paths.filter(|path| !path.is_empty()) {
        if let Ok(file) = mounts::open(Path::new(OsStr::from_bytes(path))) {
            // Its watchdog may have thawed it.
            let _ = sys::thaw(&file);
        }
    }
    of.hooks.thaw_all();
    let _ = fs::remove_file(&of.record);
}
