//! Disks into which an emulator has copied the image under them.
//!
//! Invariant: what the tables of a disk say on the device decides, never its header or the emulator: a disk has all of
//! its image when each place where the image has data is allocated in the disk, or zero by its tables. Emulators never take
//! that back: a guest that discards leaves zeros. Tables are written after the data that they refer to, so that all of
//! it is on the device once the file is synced afterwards. What the header says of other files is not followed.
//! Failure: [`Failed`]; a disk that is only read is as it was, and one whose header could not be written has the old one.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::run::run_reading;
use super::{
    Access, BLOCK, Base, Failed, Lent, OVERLAY, QemuImg, Time, lent::look, open_to_write, run,
    tables,
};
use crate::foreign::Open;
use crate::helper::path_of;
use crate::images::{Format, has_data_file, head_of};
use crate::space::Claim;

/// Longest line that describes a part of a disk, in bytes.
const LINE: usize = 4096;

/// Most separate parts of an image that are remembered: 64 MiB of them.
const PARTS: usize = 1 << 22;

/// How long the parts of a disk or of an image may be read, whatever its size: they are in its tables.
const READ: Duration = Duration::from_secs(600);

/// What an emulator writes at least when it copies a part of an image: a cluster of our overlays.
const CLUSTER: u64 = 64 << 10;

/// A part of a disk, as `qemu-img map` describes it.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Extent {
    start: u64,
    length: u64,
    /// It has an entry in the tables of the file.
    #[serde(default)]
    present: bool,
    zero: bool,
    data: bool,
}

/// What is printed, line by line.
#[derive(Debug, Default)]
struct Lines {
    line: Vec<u8>,
    /// A line that is no part of a disk.
    odd: Option<String>,
}

/// Where an image has data, in order.
#[derive(Debug, Default)]
struct Needed {
    parts: Vec<Range<u64>>,
    is_too_much: bool,
}

/// Which of these places a disk has.
#[derive(Debug)]
struct Cover {
    parts: Vec<Range<u64>>,
    next: usize,
}

impl QemuImg {
    /// How many bytes of the image under a disk that does not have, at most. 0: the disk alone shows what it shows with
    /// the image under it, and all of that is on the device.
    pub async fn missing(
        &self,
        path: &Path,
        base: Base<'_>,
        access: Access,
    ) -> Result<u64, Failed> {
        let path = path.to_owned();
        let compared = self.compare(&path, base, access).await;
        compared.map_err(|reason| Failed { path, reason })
    }

    /// Claims space for `missing` bytes that an emulator is about to copy into a disk of `size` bytes, beside what the
    /// disk takes, until the claim is dropped.
    pub(crate) async fn claim_pull(
        &self,
        path: &Path,
        missing: u64,
        size: u64,
    ) -> Result<Claim, Failed> {
        let measured = async {
            let disk = self.open(path, "open it", |path| File::open(path)).await?;
            let measure = |file: &File| Ok(file.metadata()?.blocks().saturating_mul(BLOCK));
            look(&disk, "measure it", measure).await
        };
        let there: Result<u64, String> = measured.await;
        let there = there.map_err(|reason| {
            let path = path.to_owned();
            Failed { path, reason }
        })?;
        let new = missing.saturating_add(tables(size).min(missing));
        self.claim(path, there.saturating_add(new)).await
    }

    async fn compare(&self, path: &Path, base: Base<'_>, access: Access) -> Result<u64, String> {
        let disk = self.open(path, "open it", |path| File::open(path)).await?;
        refuse_data_file(&disk).await?;
        let image = self.open_image(base.path).await?;
        let this = self.for_run()?;
        let lent = match access {
            Access::Lent => this.lend(&disk).await?,
            Access::Shared => this.share(&disk, None).await?,
        };
        let compared = async {
            let mut needed = Needed::default();
            let under = alone(base.format, &image);
            let read = this.map(vec![image], under, &lent, |part| needed.add(part));
            read.await?;
            if needed.is_too_much {
                return Err(format!(
                    "the image under it has more than {PARTS} separate parts: flatten it while the machine is off"
                ));
            }
            let mut cover = Cover::from(needed.parts);
            let file = lent.inherited()?;
            let whole = alone(Format::Qcow2, &file);
            let read = this.map(vec![file], whole, &lent, |part| cover.add(part));
            read.await?;
            Ok(cover.missing())
        };
        let compared = compared.await;
        lent.take_back().await;
        if compared == Ok(0) {
            // All that was seen may be in the memory of the node only.
            let synced = disk.run(|file: &File| file.sync_all()).await;
            let synced = synced.map_err(|e| crate::one_line(&e))?;
            synced.map_err(|e| format!("write it to the device: {e}"))?;
        }
        compared
    }

    /// Writes into the header of a disk that no emulator has which image is under it.
    pub async fn relink(&self, path: &Path, base: Base<'_>) -> Result<(), Failed> {
        let linked = async {
            let file = self.open(path, "open it", open_to_write).await?;
            refuse_data_file(&file).await?;
            let most = look(&file, "measure it", |file: &File| {
                Ok(file.metadata()?.len())
            });
            let most = most.await?;
            let this = self.for_run()?;
            let disk = this.lend(&file).await?;
            let inherited = disk.inherited()?;
            let alone = alone(Format::Qcow2, &inherited);
            let time = Time::short(OVERLAY);
            let mut program = this.program(vec![inherited], most, time);
            program.args(["rebase", "-q", "-u", "-F"]);
            program.arg(base.format.as_str()).arg("-b").arg(base.path);
            program.arg(format!("json:{alone}"));
            let linked = run(program, &disk, time, |_| {}).await;
            disk.take_back().await;
            linked?;
            let synced = file.run(|file: &File| file.sync_all()).await;
            let synced = synced.map_err(|e| crate::one_line(&e))?;
            synced.map_err(|e| format!("write it to the device: {e}"))
        };
        let linked: Result<(), String> = linked.await;
        let path = path.to_owned();
        linked.map_err(|reason| Failed { path, reason })
    }

    /// Reads which parts a disk or an image has; no other file is opened.
    async fn map(
        &self,
        files: Vec<Open<File>>,
        alone: Value,
        disk: &Lent,
        mut take: impl FnMut(Extent),
    ) -> Result<(), String> {
        let time = Time::short(READ);
        // It writes no file.
        let mut program = self.program(files, 0, time);
        program.args(["map", "-U", "--output=json"]);
        program.arg(format!("json:{alone}"));
        let mut lines = Lines::default();
        run_reading(program, disk, time, |piece| lines.add(piece, &mut take)).await?;
        lines.end(&mut take)
    }
}

impl Lines {
    fn add(&mut self, piece: &[u8], take: &mut impl FnMut(Extent)) {
        for byte in piece {
            if *byte == b'\n' {
                self.close(take);
            } else if self.line.len() < LINE {
                self.line.push(*byte);
            }
        }
    }

    fn end(mut self, take: &mut impl FnMut(Extent)) -> Result<(), String> {
        self.close(take);
        self.odd.map_or(Ok(()), |line| {
            Err(format!("qemu-img describes no part of a disk: {line}"))
        })
    }

    /// The list has each element on a line of its own.
    fn close(&mut self, take: &mut impl FnMut(Extent)) {
        let text = String::from_utf8_lossy(&self.line).into_owned();
        self.line.clear();
        let is_frame = |sign: char| sign.is_whitespace() || "[],".contains(sign);
        let text = text.trim_matches(is_frame);
        if text.is_empty() {
            return;
        }
        match serde_json::from_str(text) {
            Ok(extent) => take(extent),
            Err(_) => self.odd = Some(text.chars().take(200).collect()),
        }
    }
}

impl Needed {
    fn add(&mut self, part: Extent) {
        if !part.data || part.zero {
            return;
        }
        let end = part.start.saturating_add(part.length);
        let is_full = self.parts.len() == PARTS;
        match self.parts.last_mut() {
            Some(last) if last.end == part.start => last.end = end,
            _ if is_full => self.is_too_much = true,
            _ => self.parts.push(part.start..end),
        }
    }
}

impl Cover {
    const fn from(parts: Vec<Range<u64>>) -> Self {
        Self { parts, next: 0 }
    }

    /// The next part of the disk.
    fn add(&mut self, part: Extent) {
        if !part.present {
            return;
        }
        let end = part.start.saturating_add(part.length);
        while let Some(needed) = self.parts.get_mut(self.next) {
            // The disk has nothing at its beginning, or what comes later has it.
            if needed.start < part.start || needed.start >= end {
                return;
            }
            if needed.end > end {
                needed.start = end;
                return;
            }
            self.next += 1;
        }
    }

    const fn is_complete(&self) -> bool {
        self.next == self.parts.len()
    }

    /// How many bytes a copy of what the disk does not have takes, at most: all from the first such place on.
    fn missing(&self) -> u64 {
        if self.is_complete() {
            return 0;
        }
        let mut bytes: u64 = 0;
        let mut end: u64 = 0;
        for part in self.parts.iter().skip(self.next) {
            let start = end.max(part.start / CLUSTER * CLUSTER);
            let last = part.end.div_ceil(CLUSTER).saturating_mul(CLUSTER);
            bytes = bytes.saturating_add(last.saturating_sub(start));
            end = end.max(last);
        }
        bytes.max(1)
    }
}

async fn refuse_data_file(disk: &Open<File>) -> Result<(), String> {
    let head = look(disk, "read its header", |file: &File| head_of(file)).await?;
    if has_data_file(&head) {
        return Err("its header names an external data file".to_owned());
    }
    Ok(())
}

/// A file without what its header says of other files.
pub(super) fn alone(format: Format, file: &Open<File>) -> Value {
    let mut alone = json!({
        "driver": format.as_str(),
        "file": {"driver": "file", "filename": path_of(file)},
    });
    if format == Format::Qcow2 {
        alone["backing"] = json!(null);
    }
    alone
}

#[cfg(test)]
mod tests;
