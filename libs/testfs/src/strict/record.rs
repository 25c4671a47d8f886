//! What of a directory is on the disk, by the requests that its server has replied to.
//!
//! Invariant: the number of a file is used once: each file that was seen stays open.
//! Failure: a file that no name leads to when the kernel has just learned it, as on an overlayfs, whose lists of
//! names have other numbers than its files.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{
    DirEntryExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink,
};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use nix::libc;

use crate::fuse::{HEADER, Opcode, is, long, word};

/// Where a request has the number by which the kernel knows the file.
const NODE: usize = 16;
/// Where a reply has its error, and one about a name that number and that of the file.
const ERROR: usize = 4;
const NEW_NODE: usize = HEADER;
const NEW_FILE: usize = HEADER + 40;
/// The number by which the kernel knows the directory that is served.
const ROOT: u64 = 1;
/// Replies that tell the kernel of a file.
const LEARNING: [Opcode; 6] = [
    Opcode::Lookup,
    Opcode::Symlink,
    Opcode::Mknod,
    Opcode::Mkdir,
    Opcode::Link,
    Opcode::Create,
];

/// The record of one directory.
#[derive(Debug)]
pub(super) struct Record {
    behind: PathBuf,
    root: u64,
    /// The numbers of files by those that the kernel knows them by.
    nodes: HashMap<u64, u64>,
    /// Open, all that were seen.
    seen: HashMap<u64, File>,
    contents: HashMap<u64, Content>,
    directories: HashMap<u64, BTreeMap<OsString, Name>>,
}

/// A file at its last sync.
#[derive(Debug)]
struct Content {
    bytes: Vec<u8>,
    mode: u32,
}

/// A name in a directory at the last sync of that.
#[derive(Debug)]
struct Name {
    file: u64,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    File,
    Directory,
    Link(PathBuf),
}

impl Record {
    /// The record of a directory that is served, and empty.
    pub(super) fn new(behind: &Path) -> Result<Self> {
        let root = fs::metadata(behind)?.ino();
        let mut record = Self {
            behind: behind.to_owned(),
            root,
            nodes: HashMap::from([(ROOT, root)]),
            seen: HashMap::new(),
            contents: HashMap::new(),
            directories: HashMap::new(),
        };
        record.see(root, behind)?;
        Ok(record)
    }

    /// Takes in a request that was handled.
    pub(super) fn take(&mut self, request: &[u8], reply: &[u8]) -> Result<()> {
        if word(reply, ERROR)? != 0 {
            return Ok(());
        }
        if LEARNING.into_iter().any(|kind| is(request, kind)) {
            return self.learn(long(reply, NEW_NODE)?, long(reply, NEW_FILE)?);
        }
        if is(request, Opcode::Fsync) {
            return self.sync_file(self.file_of(request)?);
        }
        if is(request, Opcode::Fsyncdir) {
            return self.sync_directory(self.file_of(request)?);
        }
        if is(request, Opcode::Syncfs) {
            return self.settle();
        }
        Ok(())
    }

    /// Syncs all that is there.
    pub(super) fn settle(&mut self) -> Result<()> {
        self.settle_directory(self.root)
    }

    /// Writes what a power cut leaves.
    pub(super) fn write_to(&self, to: &Path) -> Result<()> {
        self.write_directory(self.root, to)
    }

    fn file_of(&self, request: &[u8]) -> Result<u64> {
        let node = long(request, NODE)?;
        let file = self.nodes.get(&node).copied();
        file.with_context(|| format!("node {node} is unknown"))
    }

    fn learn(&mut self, node: u64, file: u64) -> Result<()> {
        // There is no file of this name.
        if node == 0 {
            return Ok(());
        }
        self.nodes.insert(node, file);
        if self.seen.contains_key(&file) {
            return Ok(());
        }
        let path = find(&self.behind, file)?;
        let path = path.with_context(|| format!("no name leads to the file {file}"))?;
        self.see(file, &path)
    }

    /// Opens the file without touching it.
    fn see(&mut self, file: u64, path: &Path) -> Result<()> {
        let mut options = OpenOptions::new();
        let options = options
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_NOFOLLOW);
        let opened = options.open(path);
        let opened = opened.with_context(|| path.display().to_string())?;
        ensure!(opened.metadata()?.ino() == file, "{path:?} was replaced");
        self.seen.insert(file, opened);
        Ok(())
    }

    /// The file by a name that goes wherever its own have gone.
    fn path_of(&self, file: u64) -> Result<PathBuf> {
        let seen = self.seen.get(&file).context("a file that was not seen")?;
        Ok(format!("/proc/self/fd/{}", seen.as_raw_fd()).into())
    }

    fn sync_file(&mut self, file: u64) -> Result<()> {
        let path = self.path_of(file)?;
        let mode = fs::metadata(&path)?.mode();
        let bytes = fs::read(&path)?;
        self.contents.insert(file, Content { bytes, mode });
        Ok(())
    }

    fn sync_directory(&mut self, directory: u64) -> Result<()> {
        let mut names = BTreeMap::new();
        for entry in fs::read_dir(self.path_of(directory)?)? {
            let entry = entry?;
            let file = entry.ino();
            let kind = entry.file_type()?;
            if !self.seen.contains_key(&file) {
                self.see(file, &entry.path())?;
            }
            let kind = if kind.is_dir() {
                Kind::Directory
            } else if kind.is_symlink() {
                Kind::Link(fs::read_link(entry.path())?)
            } else {
                Kind::File
            };
            names.insert(entry.file_name(), Name { file, kind });
        }
        self.directories.insert(directory, names);
        Ok(())
    }

    fn settle_directory(&mut self, directory: u64) -> Result<()> {
        self.sync_directory(directory)?;
        let names = self.directories.get(&directory);
        let mut directories = Vec::new();
        let mut files = Vec::new();
        for name in names.into_iter().flat_map(BTreeMap::values) {
            match name.kind {
                Kind::Directory => directories.push(name.file),
                Kind::File => files.push(name.file),
                Kind::Link(_) => {}
            }
        }
        for file in files {
            self.sync_file(file)?;
        }
        for directory in directories {
            self.settle_directory(directory)?;
        }
        Ok(())
    }

    fn write_directory(&self, directory: u64, to: &Path) -> Result<()> {
        let names = self.directories.get(&directory);
        for (name, entry) in names.into_iter().flatten() {
            let path = to.join(name);
            match &entry.kind {
                Kind::Directory => {
                    fs::create_dir(&path)?;
                    self.write_directory(entry.file, &path)?;
                }
                Kind::Link(target) => symlink(target, &path)?,
                Kind::File => match self.contents.get(&entry.file) {
                    Some(content) => {
                        fs::write(&path, &content.bytes)?;
                        fs::set_permissions(&path, Permissions::from_mode(content.mode))?;
                    }
                    None => drop(File::create(&path)?),
                },
            }
        }
        Ok(())
    }
}

/// A path of the file with this number.
fn find(directory: &Path, file: u64) -> Result<Option<PathBuf>> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.ino() == file {
            return Ok(Some(entry.path()));
        }
        if entry.file_type()?.is_dir()
            && let Some(found) = find(&entry.path(), file)?
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}
