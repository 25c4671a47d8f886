//! What the disks of machines may take of the node.
//!
//! Invariant: the virtual sizes of all root disks, those that are just being made included, stay
//! below the budget; what is written leaves the reserve of the file system free.
//! Failure: a sentence with the numbers, which clients get as `ResourceExhausted`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::statvfs::statvfs;

/// Beginning of every qcow2 file up to the virtual size.
const HEADER: usize = 32;
const MAGIC: &[u8] = b"QFI\xfb";

/// The limits of a node; clones share what is in progress.
#[derive(Debug, Clone, Default)]
pub struct Budget {
    /// Largest sum of virtual sizes in bytes; `None` is no limit.
    pub most: Option<u64>,
    /// Bytes of the file system that stay free.
    pub reserve: u64,
    /// Directories with a directory for each disk.
    pub roots: Vec<PathBuf>,
    /// Disks that are being made or grown.
    making: Arc<Mutex<HashMap<PathBuf, u64>>>,
}

/// A disk that counts although it is not there yet.
#[derive(Debug)]
pub(super) struct Promise {
    making: Arc<Mutex<HashMap<PathBuf, u64>>>,
    path: PathBuf,
}

impl Budget {
    /// The limits, for disks below these directories.
    pub fn new(most: Option<u64>, reserve: u64, roots: Vec<PathBuf>) -> Self {
        Self {
            most,
            reserve,
            roots,
            making: Arc::default(),
        }
    }

    /// Counts a disk of `size` bytes at `path` until its promise is dropped; afterwards its file
    /// counts. Blocks.
    pub(super) fn promise(&self, path: &Path, size: u64) -> Result<Promise, String> {
        let mut making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(most) = self.most {
            let counted = |file: &Path| file == path || making.contains_key(file);
            let there = self
                .sum(counted)
                .map_err(|e| format!("measure the disks of the node: {e}"))?;
            let others = making.iter().filter(|(file, _)| *file != path);
            let taken = others.fold(there, |sum, (_, size)| sum.saturating_add(*size));
            if taken.saturating_add(size) > most {
                return Err(format!(
                    "the node's disk budget of {most} bytes does not suffice: other disks have \
                     {taken} bytes, this one needs {size}; remove machines, or raise vm.disk_budget"
                ));
            }
        }
        making.insert(path.to_owned(), size);
        Ok(Promise {
            making: Arc::clone(&self.making),
            path: path.to_owned(),
        })
    }

    /// Bytes that may be written to the file system of `path`, of which at least `least` are
    /// needed. Blocks.
    pub(super) fn room(&self, path: &Path, least: u64) -> Result<u64, String> {
        let directory = path.parent().unwrap_or(path);
        let is = statvfs(directory).map_err(|e| format!("measure its file system: {e}"))?;
        let free = is.blocks_available().saturating_mul(is.fragment_size());
        match free.saturating_sub(self.reserve) {
            room if room > 0 && room >= least => Ok(room),
            _ => Err(format!(
                "No space left on device: {least} bytes are needed, {free} are free, and {} of \
                 these are reserved (images.reserve)",
                self.reserve
            )),
        }
    }

    /// The virtual sizes of all disks but those that are counted elsewhere.
    fn sum(&self, counted: impl Fn(&Path) -> bool) -> io::Result<u64> {
        let mut sum = 0_u64;
        for root in &self.roots {
            for directory in list(root)? {
                for name in ["root.qcow2", "root.new"] {
                    let file = directory.join(name);
                    if !counted(&file) {
                        sum = sum.saturating_add(virtual_size(&file)?);
                    }
                }
            }
        }
        Ok(sum)
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let mut making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        making.remove(&self.path);
    }
}

fn list(root: &Path) -> io::Result<Vec<PathBuf>> {
    match std::fs::read_dir(root) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.map(|entry| Ok(entry?.path())).collect(),
    }
}

/// The size in the header of a disk of ours; 0 where there is no disk.
fn virtual_size(path: &Path) -> io::Result<u64> {
    let mut header = [0; HEADER];
    let file = match File::open(path) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(0);
        }
        file => file?,
    };
    match (&file).read_exact(&mut header) {
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(0),
        read => read?,
    }
    let size = header
        .last_chunk()
        .map_or(0, |size| u64::from_be_bytes(*size));
    Ok(if header.starts_with(MAGIC) { size } else { 0 })
}
