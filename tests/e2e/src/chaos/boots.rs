//! The boots that guests counted on their disks, and whether each had the state that it must have.
//!
//! A disk counts up. Only a revert takes it back: the next boot then has the number after that of the
//! snapshot.
//!
//! Invariant: boots are compared in the order of their times; a return that was requested and whose end was
//! not seen may have happened, or not.
//! Failure: the machine, the disk and the boots; the log files of both.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use jiff::Timestamp;

#[cfg(test)]
mod tests;

/// What was done to the machines of a name.
#[derive(Debug, Clone, Default)]
pub(super) struct History {
    /// How many objects of that name there may have been.
    pub(super) creations: u32,
    /// Reverts, in their order.
    pub(super) returns: Vec<Return>,
    /// What its disk was copied from.
    pub(super) source: Option<Source>,
}

/// A snapshot, or a backup, that a machine is made of.
#[derive(Debug, Clone)]
pub(super) struct Source {
    /// Its name.
    pub(super) machine: String,
    /// When that was taken.
    pub(super) taken: Timestamp,
}

/// A revert.
#[derive(Debug, Clone, Copy)]
pub(super) struct Return {
    /// When the snapshot was taken.
    pub(super) taken: Timestamp,
    pub(super) requested: Timestamp,
    /// From then on the disk has the state of the snapshot; `None`: that is not known.
    pub(super) done: Option<Timestamp>,
}

/// A boot that a guest has counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Boot {
    pub(super) disk: String,
    pub(super) count: u64,
    pub(super) at: Timestamp,
}

/// What was seen.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// By log file.
    logs: BTreeMap<PathBuf, Log>,
}

#[derive(Debug)]
struct Log {
    machine: String,
    /// `None`: its guest did not get that far, or went on from its memory.
    boot: Option<Boot>,
    /// Its guest ran: one that booted has reported its boot before.
    has_ticked: bool,
}

/// What the witness reports in the end.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Testimony {
    pub(super) boots: usize,
    pub(super) disks: usize,
    /// Boots that had the state of a snapshot.
    pub(super) returns: usize,
    /// Machines that were made of another one's disk, and booted.
    pub(super) copies: usize,
}

/// The boots of one machine's name, in the order of their times.
struct Account<'a> {
    machine: &'a str,
    boots: Vec<(&'a Path, &'a Boot)>,
    /// Boots that may have been counted and not reported.
    uncounted: u64,
    history: History,
}

impl Seen {
    /// Remembers what a log shows; what it showed earlier stays.
    pub(super) fn add(
        &mut self,
        file: PathBuf,
        machine: String,
        boot: Option<Boot>,
        has_ticked: bool,
    ) {
        let log = self.logs.entry(file).or_insert(Log {
            machine,
            boot: None,
            has_ticked,
        });
        log.has_ticked |= has_ticked;
        if boot.is_some() {
            log.boot = boot;
        }
    }

    /// Whether each boot had the disk, and the state of it, that it must have had.
    pub(super) fn verdict(&self, machines: &BTreeMap<String, History>) -> Result<Testimony> {
        let mut testimony = Testimony::default();
        let mut users: BTreeMap<&str, String> = BTreeMap::new();
        let names: BTreeSet<_> = self.logs.values().map(|log| &log.machine).collect();
        for machine in names {
            let account = self.account(machine, machines);
            testimony.boots += account.boots.len();
            if let Some(source) = &account.history.source {
                let origin = self.account(&source.machine, machines);
                account.begins(&origin.bases(source.taken))?;
                testimony.copies += usize::from(!account.boots.is_empty());
            }
            let origin = account.origin();
            for disk in account.disks()? {
                let other = users.insert(disk, origin.clone());
                if let Some(other) = other.filter(|other| *other != origin) {
                    bail!("{machine} and {other} had the disk {disk}");
                }
                testimony.returns += account.walk(disk)?;
            }
        }
        testimony.disks = users.len();
        Ok(testimony)
    }

    fn account<'a>(
        &'a self,
        machine: &'a str,
        machines: &BTreeMap<String, History>,
    ) -> Account<'a> {
        let logs = self.logs.iter().filter(|(_, log)| log.machine == machine);
        let mut boots = Vec::new();
        let mut uncounted = 0;
        for (file, log) in logs {
            match &log.boot {
                Some(boot) => boots.push((file.as_path(), boot)),
                // Its guest went on from its memory.
                None if log.has_ticked => {}
                None => uncounted += 1,
            }
        }
        boots.sort_by_key(|(_, boot)| boot.at);
        Account {
            machine,
            boots,
            uncounted,
            history: machines.get(machine).cloned().unwrap_or_default(),
        }
    }
}

impl<'a> Account<'a> {
    /// The disks that the machine had; an error if these are more than it may have had.
    fn disks(&self) -> Result<BTreeSet<&'a str>> {
        let disks: BTreeSet<_> = self.boots.iter().map(|(_, b)| b.disk.as_str()).collect();
        let created = self.history.creations;
        let unnamed = self.history.returns.iter();
        let unnamed = unnamed.filter(|back| self.is_unnamed(back)).count();
        ensure!(
            disks.len() <= created as usize + unnamed,
            "{} was made {created} times and had the disks {disks:?}",
            self.machine
        );
        Ok(disks)
    }

    fn last_before(&self, at: Timestamp) -> Option<&'a Boot> {
        let boots = self.boots.iter().rev();
        let mut before = boots.filter(|(_, boot)| boot.at <= at);
        before.next().map(|(_, boot)| *boot)
    }

    /// Whether the guest had not given its disk a name at the time of the snapshot, so that it gives it
    /// another one.
    fn is_unnamed(&self, back: &Return) -> bool {
        let Some(last) = self.last_before(back.requested) else {
            return true;
        };
        let named = self.last_before(back.taken);
        named.is_none_or(|named| named.disk != last.disk)
    }

    /// The machine whose disk it had first: a clone has the name of its source's disk.
    fn origin(&self) -> String {
        let source = self.history.source.as_ref();
        source
            .map_or(self.machine, |source| &source.machine)
            .to_owned()
    }

    /// The boots that the disk may have had at that time: the last one, or that of a snapshot which it was reverted
    /// to since. Empty: it may have had none.
    fn bases(&self, at: Timestamp) -> Vec<&'a Boot> {
        let Some(last) = self.last_before(at) else {
            return Vec::new();
        };
        let since = self.history.returns.iter();
        let since = since.filter(|back| back.requested > last.at && back.requested <= at);
        let mut all = vec![last];
        for back in since {
            match self.last_before(back.taken) {
                Some(base) => all.push(base),
                None => return Vec::new(),
            }
        }
        all
    }

    /// Whether the first boot of a copy follows one of those that its source may have had.
    fn begins(&self, bases: &[&Boot]) -> Result<()> {
        let Some((file, first)) = self.boots.first() else {
            return Ok(());
        };
        let follows = |base: &&Boot| {
            // A disk without a name gets one, and counts from the beginning.
            let count = if first.disk == base.disk {
                base.count
            } else {
                0
            };
            first.count > count && first.count <= count + 2 + self.uncounted
        };
        ensure!(
            bases.is_empty() || bases.iter().any(follows),
            "{} is a copy of {bases:?}, and counted {} of {}: {}",
            self.machine,
            first.count,
            first.disk,
            file.display()
        );
        Ok(())
    }

    /// The boots of a disk one after the other; how many of them followed a return.
    fn walk(&self, disk: &str) -> Result<usize> {
        let mut open: Vec<(&Return, u64)> = Vec::new();
        for back in &self.history.returns {
            if let Some(base) = self.last_before(back.taken)
                && base.disk == disk
            {
                open.push((back, base.count));
            }
        }
        let mut last: Option<(&Path, &Boot)> = None;
        let mut returned = 0;
        for &(file, boot) in self.boots.iter().filter(|(_, boot)| boot.disk == disk) {
            let before = last.map_or(0, |(_, known)| known.count);
            let follows = |base: u64| boot.count > base && boot.count <= base + 2 + self.uncounted;
            let is_past = |at: Timestamp| at < boot.at;
            let due = open
                .iter()
                .rposition(|(back, _)| back.done.is_some_and(is_past));
            let requested = open
                .iter()
                .rposition(|(back, base)| is_past(back.requested) && follows(*base));
            let used = match due {
                Some(due) => {
                    let (back, base) = open[due];
                    let between = last.is_some_and(|(_, known)| known.at > back.requested);
                    ensure!(
                        follows(base) || between && boot.count > before,
                        "{}: after the revert to the snapshot of {}, which has {base} boots, its disk \
                         counted {}: {}",
                        self.machine,
                        back.taken,
                        boot.count,
                        file.display()
                    );
                    Some(due)
                }
                None if boot.count > before => None,
                None => {
                    let previous = last.map_or(Path::new("-"), |(known, _)| known);
                    ensure!(
                        requested.is_some(),
                        "{}: boot {} of the disk {disk} was counted after boot {before}, and no revert \
                         explains that: {} and {}",
                        self.machine,
                        boot.count,
                        previous.display(),
                        file.display()
                    );
                    requested
                }
            };
            if let Some(used) = used {
                open.drain(..=used);
                returned += 1;
            }
            last = Some((file, boot));
        }
        Ok(returned)
    }
}
