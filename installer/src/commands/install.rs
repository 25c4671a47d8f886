//! `install`: the proxy on the node, and kubelet behind it.
//!
//! Invariant: it ends with kubelet healthy behind the proxy, or with the node as it was.
//! Failure: the step that failed, and whether the way back has succeeded.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Error, Result, ensure};

use super::{Node, show, show_notes};
use crate::args;
use crate::changes;
use crate::execute::Records;
use crate::journal::{Operation, Target};
use crate::plan::{self, Facts, Step};
use crate::platform::{self, Found};
use crate::{kubelet, proxy};

/// What is to be done.
struct Plan {
    target: Target,
    steps: Vec<Step>,
    notes: Vec<String>,
}

pub(crate) fn run(args: &args::Install) -> Result<ExitCode> {
    let program = program(args)?;
    let mut node = Node::new(&args.node, args.timeout)?;
    let found = platform::find(&node.root, args.platform)?;
    if args.plan {
        let plan = plan(&node, args, &found, program)?;
        println!("{}", title(&found, &plan.target));
        show(&plan.steps);
        show_end(&plan);
        return Ok(ExitCode::SUCCESS);
    }
    let foreseen = plan(&node, args, &found, program.clone())?;
    if !foreseen.steps.is_empty() || node.journal.has_waste()? {
        node.journal.open()?;
    }
    let plan = plan(&node, args, &found, program)?;
    println!("{}", title(&found, &plan.target));
    if !plan.steps.is_empty() {
        install(&mut node, args, &plan)?;
    }
    show_end(&plan);
    Ok(ExitCode::SUCCESS)
}

fn install(node: &mut Node, args: &args::Install, plan: &Plan) -> Result<()> {
    node.journal
        .begin(Operation::Install, plan.target.clone())?;
    let done = node.executor(args.timeout).run(&plan.steps, Records::Kept);
    match done {
        Ok(()) => node.journal.finish(plan.target.clone()),
        Err(error) => Err(take_back(node, args, &plan.target, error)),
    }
}

/// Undoes the installation, or the upgrade; returns the error for the caller.
fn take_back(node: &mut Node, args: &args::Install, target: &Target, error: Error) -> Error {
    eprintln!("vmlet-installer: {error:#}");
    eprintln!("vmlet-installer: the node gets back what it had");
    let back = match node.journal.state().installed.clone() {
        Some(installed) if node.journal.state().has_way_back() => to_earlier(node, args, installed),
        _ => to_nothing(node, args, target),
    };
    match back {
        Ok(()) => error.context("failed to install; the node is as it was"),
        Err(reason) => {
            let text = format!(
                "failed to install, and to undo it ({reason:#}); repeat install or withdraw"
            );
            error.context(text)
        }
    }
}

fn to_earlier(node: &mut Node, args: &args::Install, installed: Target) -> Result<()> {
    let changes = changes::to_start(&node.root, &node.journal)?;
    let facts = node.facts(&installed.service)?;
    let steps = plan::inward(changes.list, &facts);
    node.executor(args.timeout).run(&steps, Records::Kept)?;
    node.journal.finish(installed)
}

fn to_nothing(node: &mut Node, args: &args::Install, target: &Target) -> Result<()> {
    let changes = changes::to_baseline(&node.root, &node.journal)?;
    let facts = node.facts(&target.service)?;
    // Before kubelet was touched, whatever is connected is not kubelet.
    let facts = Facts {
        is_used: facts.is_used && facts.is_kubelet_touched,
        ..facts
    };
    node.journal.begin(Operation::Withdraw, target.clone())?;
    let steps = plan::outward(changes.list, &facts);
    show_notes(&changes.notes);
    node.executor(args.timeout).run(&steps, Records::None)
}

fn plan(node: &Node, args: &args::Install, found: &Found, program: Vec<u8>) -> Result<Plan> {
    let state = node.journal.state();
    let switch = kubelet::switch(&node.root, found, state)?;
    let target = Target {
        platform: found.platform.name,
        service: found.service.clone(),
        primary: switch.primary,
    };
    if let Some(earlier) = state.target() {
        ensure!(
            earlier.platform == target.platform && earlier.service == target.service,
            "the proxy is installed for {}: withdraw it first",
            earlier.service
        );
    }
    let prefix = &args.node.prefix;
    let mut changes = proxy::changes(&node.root, prefix, &target, program, state)?;
    changes.list.extend(switch.changes.list);
    changes.notes.extend(switch.changes.notes);
    let facts = node.facts(&found.service)?;
    Ok(Plan {
        target,
        steps: plan::inward(changes.list, &facts),
        notes: changes.notes,
    })
}

fn program(args: &args::Install) -> Result<Vec<u8>> {
    let path: PathBuf = match &args.proxy {
        Some(path) => path.clone(),
        None => std::env::current_exe()
            .context("failed to find this program")?
            .with_file_name("vmlet-criproxy"),
    };
    std::fs::read(&path)
        .with_context(|| format!("failed to read the proxy's program {}", path.display()))
}

fn title(found: &Found, target: &Target) -> String {
    let platform = found.platform;
    let [cni_settings, cni_plugins] = platform.cni;
    format!(
        "{}: {} runs kubelet, whose runtime is at {}\n\
         folders for the node pods of Vmlet: {}, {cni_settings}, {cni_plugins}",
        platform::title(platform.name),
        target.service,
        target.primary.display(),
        platform.kubelet_root,
    )
}

fn show_end(plan: &Plan) {
    if plan.steps.is_empty() {
        println!("nothing to do: kubelet is behind the proxy");
    }
    show_notes(&plan.notes);
}
