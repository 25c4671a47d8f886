//! Does the steps of a plan.
//!
//! Invariant: the journal knows a step before it is done; what was foreseen is compared with the file
//! right before it is replaced.
//! Failure: names the step; the steps before it are done.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::changes::Change;
use crate::crash;
use crate::health::Health;
use crate::journal::Journal;
use crate::plan::{Event, Step};
use crate::root::Root;
use crate::services::Services;

/// Whether changes of files are for the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Records {
    /// So that they can be undone.
    Kept,
    /// It is an undoing: what it needs is in the journal.
    None,
}

/// What steps work on.
#[derive(Debug)]
pub(crate) struct Executor<'a> {
    pub(crate) root: &'a Root,
    pub(crate) services: &'a Services,
    pub(crate) health: &'a Health,
    pub(crate) journal: &'a mut Journal,
    pub(crate) timeout: Duration,
}

impl Executor<'_> {
    pub(crate) fn run(&mut self, steps: &[Step], records: Records) -> Result<()> {
        for step in steps {
            println!("{step}");
            self.step(step, records)
                .with_context(|| format!("failed to do the step: {step}"))?;
            crash::point();
        }
        Ok(())
    }

    fn step(&mut self, step: &Step, records: Records) -> Result<()> {
        match step {
            Step::File(change) => self.file(change, records),
            Step::Reload => self.call(&["daemon-reload"]),
            Step::Enable(unit) => self.call(&["enable", unit]),
            Step::Disable(unit) => self.call(&["disable", unit]),
            Step::Start(unit) => self.call(&["start", unit]),
            Step::Stop(unit) => {
                // Right before it: without the proxy, who uses it has no runtime.
                self.health.wait(Event::ProxyUnused, self.timeout)?;
                self.call(&["stop", unit])
            }
            Step::Restart(unit) => self.call(&["restart", unit]),
            Step::Await(event) => self.health.wait(*event, self.timeout),
            Step::Forget => {
                for folder in self.journal.forget()? {
                    println!("{} is not empty: it is left", folder.display());
                }
                Ok(())
            }
        }
    }

    fn file(&mut self, change: &Change, records: Records) -> Result<()> {
        let path = &change.path;
        ensure!(
            self.root.read(path)? == change.from,
            "{} has changed meanwhile: repeat this",
            path.display()
        );
        if records == Records::Kept {
            for folder in self.root.missing_above(path)? {
                self.journal.folder_made(&folder)?;
                self.root.create_folder(&folder)?;
                crash::point();
            }
            self.journal.changed(change)?;
        }
        match &change.to {
            Some(content) => self.root.write(path, content),
            None => self.root.remove(path),
        }
    }

    fn call(&mut self, arguments: &[&str]) -> Result<()> {
        self.journal.called(arguments.join(" "))?;
        self.services.call(arguments)?;
        crash::point();
        Ok(())
    }
}
