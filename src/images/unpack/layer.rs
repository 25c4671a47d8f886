//! The disk in a layer of a container disk: the one regular file in the directory `disk`.
//!
//! Invariant: no path of the archive is used for anything but to recognise the disk; what is read
//! for the header of an entry is bounded, and so is what the layer has beside the disk.
//! Failure: a layer with two disks, or with one that is no plain file, is refused by name.

use std::cell::Cell;
use std::io::{self, Read};
use std::path::{Component, Path};
use std::rc::Rc;

use tar::{Archive, EntryType};

use super::beginning::BEGINNING;
use super::{Beginning, Refusal, Sink, open};

/// Directory of the disk in a container disk.
const DISK: &str = "disk";
/// Beginning of the name of a file that stands for a removed one.
const WHITEOUT: &str = ".wh.";
/// Most bytes that the header of an entry may take, its extensions included: they are read into
/// memory.
const MOST_HEADER: u64 = 1 << 20;
/// Most bytes of all files beside the disk.
const MOST_ELSE: u64 = 1 << 30;
/// Most bytes of files before the disk in a layer of which only the beginning is read.
const MOST_BEFORE: u64 = 64 << 20;
/// Longest name of a disk in an error.
const LONGEST: usize = 80;

/// Gives the disk in a layer to a sink; returns whether the layer has one.
pub(super) fn decode<S: Sink>(file: impl Read, sink: &mut S) -> Result<bool, S::Error> {
    let layer = open(file).map_err(|e| sink.refuse(Refusal::Broken(e)))?;
    let layer = layer.reader;
    let budget = Budget::default();
    let mut archive = Archive::new(budget.limit(layer));
    let mut found: Option<String> = None;
    let mut rest = MOST_ELSE;
    let entries = archive.entries();
    for entry in entries.map_err(|e| sink.refuse(Refusal::Broken(e)))? {
        let mut entry = entry.map_err(|e| sink.refuse(Refusal::Broken(e)))?;
        let kind = entry.header().entry_type();
        let name = match disk_name(&entry.path_bytes()) {
            Some(name) if kind != EntryType::Directory => name,
            _ => {
                budget.set(rest);
                let skipped = io::copy(&mut entry, &mut io::sink());
                skipped.map_err(|e| sink.refuse(Refusal::Broken(e)))?;
                rest = budget.get();
                budget.set(MOST_HEADER);
                continue;
            }
        };
        if let Some(first) = found {
            let reason = format!("its directory disk has two files: {first:?} and {name:?}");
            return Err(sink.refuse(Refusal::Content(reason)));
        }
        if !matches!(kind, EntryType::Regular | EntryType::Continuous) {
            let reason = format!("{name:?} in its directory disk is no plain file");
            return Err(sink.refuse(Refusal::Content(reason)));
        }
        let size = entry.size();
        budget.set(u64::MAX);
        let opened = open(&mut entry);
        let mut opened = opened.map_err(|e| sink.refuse(Refusal::Broken(e)))?;
        let declared = (!opened.is_packed).then_some(size);
        sink.take(&mut opened.reader, declared)?;
        drop(opened);
        budget.set(MOST_HEADER);
        found = Some(name);
    }
    Ok(found.is_some())
}

/// As [`super::head_here`].
pub(super) fn head(beginning: &[u8]) -> Option<Beginning> {
    let budget = Budget::default();
    let mut archive = Archive::new(budget.limit(open(beginning).ok()?.reader));
    let mut rest = MOST_BEFORE;
    for entry in archive.entries().ok()? {
        let mut entry = entry.ok()?;
        let is_file = entry.header().entry_type() != EntryType::Directory;
        if is_file && disk_name(&entry.path_bytes()).is_some() {
            let size = entry.size();
            budget.set(u64::MAX);
            let mut opened = open(&mut entry).ok()?;
            let length = (!opened.is_packed).then_some(size);
            let most = length.map_or(BEGINNING, |length| length.min(BEGINNING));
            let mut head = vec![0; usize::try_from(most).ok()?];
            // What comes after an error is not in the beginning.
            let filled = fill_all(&mut opened.reader, &mut head);
            head.truncate(filled);
            return (filled > 0 || most == 0).then_some(Beginning { head, length });
        }
        budget.set(rest);
        io::copy(&mut entry, &mut io::sink()).ok()?;
        rest = budget.get();
        budget.set(MOST_HEADER);
    }
    None
}

/// Reads until the buffer is full, or there is no more; returns how much was read.
fn fill_all(from: &mut impl Read, buffer: &mut [u8]) -> usize {
    let mut filled = 0;
    while filled < buffer.len() {
        match from.read(&mut buffer[filled..]) {
            Ok(0) | Err(_) => break,
            Ok(read) => filled += read,
        }
    }
    filled
}

/// The name of a file directly in the directory of the disk.
fn disk_name(path: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(path);
    let mut parts = Path::new(&*text)
        .components()
        .filter_map(|part| match part {
            Component::CurDir | Component::RootDir => None,
            Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            // No directory has this name.
            Component::ParentDir | Component::Prefix(_) => Some(String::from("..")),
        });
    let directory = parts.next()?;
    let name = parts.next()?;
    let direct = directory == DISK && parts.next().is_none() && !name.starts_with(WHITEOUT);
    direct.then(|| name.chars().take(LONGEST).collect())
}

/// How many more bytes may be read of an archive.
#[derive(Clone)]
struct Budget(Rc<Cell<u64>>);

impl Default for Budget {
    fn default() -> Self {
        Self(Rc::new(Cell::new(MOST_HEADER)))
    }
}

impl Budget {
    fn set(&self, bytes: u64) {
        self.0.set(bytes);
    }

    fn get(&self) -> u64 {
        self.0.get()
    }

    fn limit<R: Read>(&self, reader: R) -> Budgeted<R> {
        Budgeted {
            reader,
            budget: self.clone(),
        }
    }
}

struct Budgeted<R> {
    reader: R,
    budget: Budget,
}

impl<R: Read> Read for Budgeted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.budget.get();
        if left == 0 && !buffer.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the layer has more beside the disk than a container disk has",
            ));
        }
        let most = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let n = self.reader.read(&mut buffer[..most])?;
        self.budget.set(left - n as u64);
        Ok(n)
    }
}
