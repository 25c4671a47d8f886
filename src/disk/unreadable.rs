//! Disks without a record that can be read: they count as disks, and stay as they are.
//!
//! Invariant: a look changes nothing. A disk with a record that can be read is not among them. One whose
//! record has no key that can be read may be there twice, as its record and as its file: better twice than
//! not at all.
//! Failure: a directory that cannot be looked through is an error: what is not seen may be there.

use podspec::VmUid;

use super::Disks;
use super::error::{Error, Result};
use crate::files;

/// A disk of which no record can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableDisk {
    /// The machine that it belongs to, where that is known.
    pub vm: Option<VmUid>,
    /// Why no record of it can be read, and what to do.
    pub reason: String,
}

impl Disks {
    /// The disks of records that were set aside, and the complete ones without a record. Blocks for a
    /// moment.
    pub fn unreadable(&self) -> Result<Vec<UnreadableDisk>> {
        let rows = self.aside().rows().iter();
        let of_record = rows.map(|row| UnreadableDisk {
            vm: row.key.parse().ok().filter(|_| row.is_named),
            reason: self.aside().error(row).to_string(),
        });
        let mut found: Vec<_> = of_record.collect();
        let failed = || files::failed("look through", &self.root);
        for entry in std::fs::read_dir(&self.root).map_err(failed())? {
            let name = entry.map_err(failed())?.file_name();
            let vm = name.to_str().and_then(|name| name.parse::<VmUid>().ok());
            if let Some(vm) = vm
                && self.is_unrecorded(vm)?
            {
                let path = self.file(vm);
                found.push(UnreadableDisk {
                    vm: Some(vm),
                    reason: Error::Unrecorded { vm, path }.to_string(),
                });
            }
        }
        Ok(found)
    }

    /// Whether a complete disk is there, and no record has its name, not even one that was set aside.
    fn is_unrecorded(&self, vm: VmUid) -> Result<bool> {
        let file = self.file(vm);
        // The file first: a disk that is made meanwhile has a record before it has a file.
        let is_there = || file.try_exists().map_err(files::failed("look for", &file));
        if !is_there()? || self.get(vm).is_some() || self.aside().get(&vm.to_string()).is_some() {
            return Ok(false);
        }
        // And again: one that is removed meanwhile loses its file before its record.
        Ok(is_there()?)
    }
}
