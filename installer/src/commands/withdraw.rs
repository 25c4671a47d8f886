//! `withdraw`: kubelet on its own runtime, and the node as it was.
//!
//! Invariant: the proxy stops only when nothing is connected to it.
//! Failure: the step that failed; the journal stays, and the command can be repeated.

use std::process::ExitCode;

use anyhow::{Context as _, Result};

use super::{Node, show, show_notes};
use crate::args;
use crate::changes::{self, Changes};
use crate::execute::Records;
use crate::journal::{Operation, Target};
use crate::kubelet;
use crate::plan::{self, Step};

pub(crate) fn run(args: &args::Withdraw) -> Result<ExitCode> {
    let mut node = Node::new(&args.node, args.timeout)?;
    let Some(target) = node.journal.state().target().cloned() else {
        return nothing(&mut node, args);
    };
    if args.plan {
        let plan = plan(&node, &target)?;
        show(&plan.steps);
        show_notes(&plan.notes);
        return Ok(ExitCode::SUCCESS);
    }
    node.journal.open()?;
    let plan = plan(&node, &target)?;
    node.journal.begin(Operation::Withdraw, target.clone())?;
    show_notes(&plan.notes);
    let done = node.executor(args.timeout).run(&plan.steps, Records::None);
    done.context("failed to withdraw; repeat it when the reason is gone")?;
    let primary = &target.primary;
    show_notes(&Vec::from_iter(kubelet::after_withdrawal(
        target.platform,
        primary,
    )));
    Ok(ExitCode::SUCCESS)
}

struct Plan {
    steps: Vec<Step>,
    notes: Vec<String>,
}

fn plan(node: &Node, target: &Target) -> Result<Plan> {
    let Changes { list, notes } = changes::to_baseline(&node.root, &node.journal)?;
    let facts = node.facts(&target.service)?;
    Ok(Plan {
        steps: plan::outward(list, &facts),
        notes,
    })
}

/// Nothing is installed; an installation that was killed at once may have left folders.
fn nothing(node: &mut Node, args: &args::Withdraw) -> Result<ExitCode> {
    println!("nothing is installed below {}", args.node.prefix.display());
    if !args.plan && node.journal.has_remains()? {
        node.journal.open()?;
        node.journal.forget()?;
    }
    Ok(ExitCode::SUCCESS)
}
