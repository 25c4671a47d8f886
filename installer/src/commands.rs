//! The commands, a module each, and the node that they work on.
//!
//! Invariant: a command that is to show a plan changes nothing.
//! Failure: what the steps say.

pub(crate) mod install;
pub(crate) mod status;
pub(crate) mod withdraw;

use std::time::Duration;

use anyhow::Result;

use crate::args;
use crate::execute::Executor;
use crate::health::Health;
use crate::journal::Journal;
use crate::plan::{Facts, Step};
use crate::proxy;
use crate::root::Root;
use crate::services::Services;

/// The node of a command.
struct Node {
    root: Root,
    services: Services,
    health: Health,
    journal: Journal,
}

impl Node {
    fn new(args: &args::Node, timeout: Duration) -> Result<Self> {
        let root = Root::new(&args.root)?;
        Ok(Self {
            services: Services::new(&root, args.systemctl.as_deref(), timeout),
            health: Health {
                root: root.clone(),
                healthz: args.healthz,
            },
            journal: Journal::read(&root, &args.prefix)?,
            root,
        })
    }

    fn facts(&self, service: &str) -> Result<Facts> {
        Ok(Facts {
            service: service.to_owned(),
            is_enabled: self.services.query("is-enabled", proxy::UNIT)?,
            is_active: self.services.query("is-active", proxy::UNIT)?,
            is_used: self.health.is_proxy_used()?,
            is_unfinished: self.journal.state().unfinished.is_some(),
            is_kubelet_touched: self.journal.state().is_kubelet_touched(),
        })
    }

    fn executor(&mut self, timeout: Duration) -> Executor<'_> {
        Executor {
            root: &self.root,
            services: &self.services,
            health: &self.health,
            journal: &mut self.journal,
            timeout,
        }
    }
}

fn show(steps: &[Step]) {
    for (number, step) in steps.iter().enumerate() {
        print!("{}. {}", number + 1, step.in_full());
    }
}

fn show_notes(notes: &[String]) {
    for note in notes {
        println!("note: {note}");
    }
}
