//! The files of the first disk of a fake domain, and its block jobs.
//!
//! Invariant: no file is read or written but that of memory; a job makes a step with each look at it, and nothing else happens by
//! itself.
//! Failure: the errors that the real hypervisor gives in the same place.

use std::fs::File;
use std::path::PathBuf;
use std::pin::pin;

use uuid::Uuid;

use super::{FakeHypervisor, Inner};
use crate::saved::WHOLE;
use crate::{BlockCommit, BlockJob, BlockJobEnd, Error, MemorySwitch, Result, State};

/// How many steps a job has.
const STEPS: u64 = 2;

/// A block job of a fake domain.
#[derive(Debug)]
pub(super) struct Job {
    work: Work,
    done: u64,
}

/// What a block job does.
#[derive(Debug)]
enum Work {
    /// Copies a file to the next one below it.
    Commit(BlockCommit),
    /// Copies all files to the upper one.
    Pull,
}

/// A switch that takes place when its domain was looked at this often, if its file is there then.
#[derive(Debug)]
pub(super) struct LateSwitch {
    domain: Uuid,
    file: PathBuf,
    looks: usize,
}

impl FakeHypervisor {
    /// A client that is gone has left a request for a switch: it takes place after so many looks at the file of the
    /// first disk, unless the file has no such name by then.
    pub fn leave_switch(&self, domain: Uuid, file: PathBuf, looks: usize) {
        self.lock().late_switch = Some(LateSwitch {
            domain,
            file,
            looks,
        });
    }

    /// Guests change their memory faster than it is written from now on: while they run, its file gets so many bytes
    /// and is never complete.
    pub fn keep_guests_busy(&self, bytes: u64) {
        self.lock().busy_memory = Some(bytes);
    }

    /// Whether guests ran while their memory was written for a switch of their disk, the earliest first.
    pub fn memory_switches(&self) -> Vec<bool> {
        self.lock().memory_switches.clone()
    }

    pub(super) async fn write_memory_and_switch(
        &self,
        domain: Uuid,
        to: MemorySwitch,
    ) -> Result<()> {
        let refused = |reason: String| Error::Refused {
            call: "save memory and switch disk",
            reason,
        };
        let failed = |e: std::io::Error| refused(e.to_string());
        let busy = {
            let mut inner = self.lock();
            inner.domain(domain)?;
            inner.memory_switches.push(to.runs);
            inner.busy_memory.filter(|_| to.runs)
        };
        if let Some(bytes) = busy {
            let mut aborted = pin!(self.aborts.notified());
            aborted.as_mut().enable();
            let file = File::create(&to.memory).map_err(failed)?;
            file.set_len(bytes).map_err(failed)?;
            self.lock().busy_save = Some(to.memory);
            aborted.await;
            return Err(refused("operation aborted".to_owned()));
        }
        std::fs::write(&to.memory, WHOLE).map_err(failed)?;
        let switched = self.lock().switch(domain, to.disk);
        if switched.is_err() {
            std::fs::remove_file(&to.memory).map_err(failed)?;
        }
        switched
    }

    /// Ends a save, also that of a client that has gone.
    pub(super) fn stop_saving(&self, domain: Uuid) -> Result<bool> {
        let file = {
            let mut inner = self.lock();
            inner.domain(domain)?;
            inner.busy_save.take()
        };
        self.aborts.notify_waiters();
        let Some(file) = file else {
            return Ok(false);
        };
        // libvirt removes what it has made, if it has its name still.
        let _ = std::fs::remove_file(file);
        Ok(true)
    }

    /// Block jobs make no progress from now on, or again do.
    pub fn hold_jobs(&self, holds: bool) {
        self.lock().holds_jobs = holds;
    }

    /// Requests to pull get no answer from now on, and are not carried out.
    pub fn hold_pulls(&self) {
        self.lock().held_pulls = Some(0);
    }

    /// How many requests to pull have got no answer.
    pub fn held_pulls(&self) -> usize {
        self.lock().held_pulls.unwrap_or_default()
    }

    /// Pivots fail from now on; `takes_place`: the guest writes to the other file all the same.
    pub fn fail_pivots(&self, reason: &str, takes_place: bool) {
        self.lock().pivot_failure = Some((reason.to_owned(), takes_place));
    }

    /// Whether the first disk of a domain has a block job.
    pub fn has_job(&self, domain: Uuid) -> bool {
        let inner = self.lock();
        let found = inner.domains.get(&domain);
        found.is_some_and(|found| found.job.is_some())
    }

    pub(super) fn switch_late(&self, domain: Uuid) {
        let mut inner = self.lock();
        let Some(mut late) = inner.late_switch.take() else {
            return;
        };
        if late.domain != domain {
            inner.late_switch = Some(late);
            return;
        }
        late.looks = late.looks.saturating_sub(1);
        if late.looks > 0 {
            inner.late_switch = Some(late);
        } else if late.file.exists()
            && let Ok(found) = inner.domain(domain)
        {
            found.files.insert(0, late.file);
        }
    }
}

impl Inner {
    pub(super) fn switch(&mut self, domain: Uuid, file: PathBuf) -> Result<()> {
        let failure = self.switch_failure.clone();
        let is_locked = self.is_locked;
        let found = self.domain(domain)?;
        let refused = |reason: &str| Error::Refused {
            call: "switch disk",
            reason: reason.to_owned(),
        };
        if found.state != State::Active {
            return Err(refused("the domain is not running"));
        }
        if is_locked {
            return Err(Error::Locked {
                call: "switch disk",
                reason: "cannot acquire state change lock".to_owned(),
            });
        }
        if found.job.is_some() {
            return Err(refused("the disk has an active block job"));
        }
        if !file.exists() {
            return Err(refused("the file does not exist"));
        }
        match failure {
            Some((reason, false)) => return Err(refused(&reason)),
            Some((reason, true)) => {
                found.files.insert(0, file);
                return Err(refused(&reason));
            }
            None => found.files.insert(0, file),
        }
        Ok(())
    }

    pub(super) fn files(&mut self, domain: Uuid) -> Result<Option<Vec<PathBuf>>> {
        match self.domain(domain) {
            Ok(found) if found.state == State::Active => Ok(Some(found.files.clone())),
            Ok(_) | Err(Error::NoDomain(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn commit(&mut self, domain: Uuid, commit: BlockCommit) -> Result<()> {
        let found = self.domain(domain)?;
        let refused = |reason: &str| Error::Refused {
            call: "merge disk files",
            reason: reason.to_owned(),
        };
        if found.state != State::Active || found.job.is_some() {
            return Err(refused("it does not run, or has a block job"));
        }
        let top = found.files.iter().position(|file| *file == commit.top);
        let base = found.files.iter().position(|file| *file == commit.base);
        let is_next = top.is_some_and(|top| base == Some(top + 1));
        if !is_next || (top == Some(0)) != commit.is_active {
            return Err(refused("the disk has no such files"));
        }
        let work = Work::Commit(commit);
        found.job = Some(Job { work, done: 0 });
        Ok(())
    }

    /// Whether a request to pull that has just come gets no answer.
    pub(super) fn holds_pull(&mut self) -> bool {
        let Some(held) = &mut self.held_pulls else {
            return false;
        };
        *held += 1;
        true
    }

    pub(super) fn pull(&mut self, domain: Uuid) -> Result<()> {
        let found = self.domain(domain)?;
        if found.state != State::Active || found.job.is_some() {
            return Err(Error::Refused {
                call: "pull disk files",
                reason: "it does not run, or has a block job".to_owned(),
            });
        }
        let work = Work::Pull;
        found.job = Some(Job { work, done: 0 });
        Ok(())
    }

    pub(super) fn job(&mut self, domain: Uuid) -> Result<Option<BlockJob>> {
        let holds = self.holds_jobs;
        let found = self.domain(domain)?;
        let Some(job) = &mut found.job else {
            return Ok(None);
        };
        if !holds {
            job.done = STEPS.min(job.done + 1);
        }
        let is_over = match &job.work {
            _ if job.done < STEPS => false,
            Work::Commit(commit) => {
                if !commit.is_active {
                    found.files.retain(|file| *file != commit.top);
                }
                !commit.is_active
            }
            Work::Pull => {
                found.files.truncate(1);
                true
            }
        };
        let job = BlockJob {
            done: job.done,
            total: STEPS,
        };
        if is_over {
            found.job = None;
        }
        Ok((!is_over).then_some(job))
    }

    pub(super) fn end_job(&mut self, domain: Uuid, end: BlockJobEnd) -> Result<()> {
        let failure = self.pivot_failure.clone();
        let found = self.domain(domain)?;
        let refused = |reason: &str| Error::Refused {
            call: "end block job",
            reason: reason.to_owned(),
        };
        let job = found.job.take();
        let job = job.ok_or_else(|| refused("no current block job"))?;
        if end == BlockJobEnd::Cancel {
            return Ok(());
        }
        match failure {
            _ if job.done < STEPS => {
                found.job = Some(job);
                return Err(refused("the block job is not ready for a pivot"));
            }
            Some((reason, false)) => {
                found.job = Some(job);
                return Err(refused(&reason));
            }
            Some((reason, true)) => {
                found.files.remove(0);
                return Err(refused(&reason));
            }
            None => found.files.remove(0),
        };
        Ok(())
    }
}
