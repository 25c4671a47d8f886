//! `--watch` of verbs that change machines: prints each step until the machines are as requested.
//!
//! Invariant: it only reads; what was requested goes on without it. A machine that cannot become what was
//! requested, since it is deleted or its guest has ended, ends the wait for it.
//! Failure: machines that ended otherwise, in one sentence; a watch that breaks is begun again.

use std::collections::BTreeSet;
use std::pin::pin;

use anyhow::bail;
use crds::VirtualMachine;
use crds::guard::Guarded;
use crds::vm::PrintableStatus as Word;
use futures_util::StreamExt as _;
use kube::ResourceExt as _;
use kube::runtime::watcher::{Config, Event};

use super::list::watch::{Change, Screen, changes, first_answer, report};
use crate::cluster::ClusterArgs;
use crate::colour::When;

/// What a machine is to become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// On, and ready.
    Ready,
    /// As `Ready`, in a new instance.
    Restarted,
    Paused,
    Suspended,
    Stopped,
    Deleted,
    /// Nothing: it is followed until it is deleted.
    Followed,
}

/// A machine that is followed.
#[derive(Debug, Clone)]
pub(super) struct Target {
    name: String,
    uid: Option<String>,
    /// Of the instance that it had.
    instance: Option<String>,
    goal: Goal,
}

/// How far it is.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Open,
    Reached,
    /// It cannot be reached any more.
    Failed(&'static str),
}

impl Target {
    /// The machine as it was when the change was requested.
    pub(super) fn new(vm: &VirtualMachine, goal: Goal) -> Self {
        Self {
            name: vm.name_any(),
            uid: vm.uid(),
            instance: instance(vm),
            goal,
        }
    }

    /// Decides by the machine as it is now; without one it is gone.
    fn judge(&self, vm: Option<&VirtualMachine>) -> Verdict {
        let Some(vm) = vm.filter(|vm| vm.uid() == self.uid) else {
            return match self.goal {
                Goal::Deleted | Goal::Followed => Verdict::Reached,
                _ => Verdict::Failed("was deleted"),
            };
        };
        let status = vm.status.clone().unwrap_or_default();
        let word = status.printable_status;
        let is_new = instance(vm) != self.instance;
        let is_ended = status.instance.is_some_and(|one| one.finished_at.is_some());
        let is_reached = match self.goal {
            Goal::Ready => word == Some(Word::Running) && status.ready,
            Goal::Restarted => word == Some(Word::Running) && status.ready && is_new,
            Goal::Paused => word == Some(Word::Paused),
            Goal::Suspended => word == Some(Word::Suspended),
            Goal::Stopped => word == Some(Word::Stopped),
            Goal::Deleted | Goal::Followed => false,
        };
        let is_on = matches!(self.goal, Goal::Ready | Goal::Restarted | Goal::Paused);
        if is_reached {
            Verdict::Reached
        } else if is_on && is_new && is_ended && word == Some(Word::Stopped) {
            Verdict::Failed("has ended: its guest powered itself off, or was stopped")
        } else {
            Verdict::Open
        }
    }
}

/// The instance on record.
fn instance(vm: &VirtualMachine) -> Option<String> {
    let status = vm.status.as_ref()?;
    status.instance.as_ref().map(|one| one.uid.clone())
}

/// The targets that are not decided yet, and what was seen.
struct Open {
    targets: Vec<Target>,
    failed: Vec<String>,
    /// Names in the list that is being read.
    seen: BTreeSet<String>,
}

impl Open {
    fn new(targets: Vec<Target>) -> Self {
        Self {
            targets,
            failed: Vec::new(),
            seen: BTreeSet::new(),
        }
    }

    fn take(&mut self, event: &Event<Guarded<VirtualMachine>>) {
        match event {
            Event::Init => self.seen.clear(),
            Event::InitApply(one) => {
                self.seen.insert(one.name_any());
                self.judge(one);
            }
            Event::Apply(one) => self.judge(one),
            Event::Delete(one) => self.decide(&one.name_any(), None),
            Event::InitDone => {
                let names = self.targets.iter().map(|target| target.name.clone());
                let gone: Vec<_> = names.filter(|name| !self.seen.contains(name)).collect();
                for name in gone {
                    self.decide(&name, None);
                }
            }
        }
    }

    /// One that this program cannot read is not decided.
    fn judge(&mut self, one: &Guarded<VirtualMachine>) {
        if let Ok(vm) = &one.0 {
            self.decide(&vm.name_any(), Some(vm));
        }
    }

    fn decide(&mut self, name: &str, vm: Option<&VirtualMachine>) {
        let failed = &mut self.failed;
        self.targets.retain(|target| {
            if target.name != name {
                return true;
            }
            match target.judge(vm) {
                Verdict::Open => true,
                Verdict::Reached => false,
                Verdict::Failed(why) => {
                    failed.push(format!("{name} {why}"));
                    false
                }
            }
        });
    }
}

/// Follows machines until each is what it is to become.
pub(super) async fn follow(args: &ClusterArgs, targets: Vec<Target>) -> anyhow::Result<()> {
    Box::pin(watch(args, targets)).await
}

async fn watch(args: &ClusterArgs, targets: Vec<Target>) -> anyhow::Result<()> {
    let cluster = args.connect_to_watch().await?;
    first_answer(&cluster.api(), &Config::default(), args).await?;
    let one = match targets.as_slice() {
        [only] => Some(format!("metadata.name={}", only.name)),
        _ => None,
    };
    let config = Config {
        field_selector: one,
        ..Config::default()
    };
    let names = targets.iter().map(|target| target.name.clone()).collect();
    let mut open = Open::new(targets);
    let mut screen = Screen::of_machines(names, When::default().is_on());
    super::print(&screen.header())?;
    let mut changes = pin!(changes(&cluster, false, config));
    while !open.targets.is_empty() {
        let change = match changes.next().await {
            Some(Ok(change)) => change,
            Some(Err(error)) => {
                report(&error).await;
                continue;
            }
            None => bail!("the watch has ended"),
        };
        if let Change::Machine(event) = &change {
            open.take(event);
        }
        super::print(&screen.take(change))?;
    }
    if !open.failed.is_empty() {
        bail!("{}", open.failed.join("; "));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
