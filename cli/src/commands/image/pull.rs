//! `image pull`: lets nodes pull an image before a machine needs it.
//!
//! Invariant: the request is in `spec.prePull`; waiting changes nothing, and ending it leaves the
//! request.
//! Failure: the cluster's; [`PullError`] with the error of a node once no node pulls any more.

mod request;
pub(super) mod target;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{ArgGroup, Args};
use crds::PrePullStatus;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::{MissedTickBehavior, interval};

use self::request::{Request, Selector, selector};
use self::target::{Scope, State, Target};
use crate::cluster::{ClusterArgs, ClusterError};
use crate::commands::run::RunError;
use crate::interrupt::Interrupts;

/// Time between two looks at the image.
const TICK: Duration = Duration::from_secs(2);

/// Image to pull, and the nodes that pull it.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("request").required(true).args(["nodes", "all_nodes", "stop"])))]
pub(crate) struct PullArgs {
    /// Name of the image.
    #[arg(value_name = "NAME")]
    name: String,
    /// Labels of the nodes that pull the image, such as pool=db or pool=db,zone=a.
    #[arg(long, value_name = "SELECTOR", value_parser = selector)]
    nodes: Option<Selector>,
    /// Let all nodes with Vmlet pull the image.
    #[arg(long)]
    all_nodes: bool,
    /// Withdraw the request: nodes that pull the image stop, nodes that have it keep it.
    #[arg(long)]
    stop: bool,
    /// Return when the request is recorded, without waiting for the nodes.
    #[arg(long, conflicts_with = "stop")]
    no_wait: bool,
    /// Scope of the image [default: the image of the namespace if there is one, else the image of
    /// the cluster].
    #[arg(long, value_enum, value_name = "SCOPE")]
    scope: Option<Scope>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Nodes that did not get the image.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum PullError {
    #[error("{failed} of {desired} nodes failed to pull image {name}: {message}")]
    Nodes {
        name: String,
        failed: u32,
        desired: u32,
        message: String,
    },
    #[error(
        "no node pulls image {name}: {message}; nodes that fit later will: `vmletctl image pull {name} --stop` \
         withdraws the request"
    )]
    None { name: String, message: String },
    #[error("another client withdrew the request to pull image {0}")]
    Withdrawn(String),
}

/// What the status says of the request.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Nodes pull the image, or the controller has not seen the request.
    Wait,
    /// Every desired node has it.
    Done,
    Failed(PullError),
}

pub(crate) async fn run(args: &PullArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    let target = Target::find(&cluster, &args.name, args.scope).await?;
    let request = Request::for_nodes(args.nodes.as_ref(), args.stop);
    let generation = target.write(&request).await?;
    let title = target.title();
    match request {
        Request::Stop => crate::commands::print(&format!("{title} pre-pull withdrawn\n"))?,
        Request::Pull(_) if args.no_wait => {
            crate::commands::print(&format!("{title} pre-pull requested\n"))?;
        }
        Request::Pull(_) => {
            let mut interrupts = Interrupts::listen().context("listen for signals")?;
            let status = tokio::select! {
                status = wait(&target, generation) => status?,
                () = interrupts.next() => {
                    eprintln!("the nodes continue; `vmletctl image pull {} --stop` ends the pulls", args.name);
                    return Err(RunError::Interrupted.into());
                }
            };
            crate::commands::print(&format!("{title} {}\n", nodes(&status)))?;
            if status.unavailable > 0 {
                eprintln!("{}", unavailable(status.unavailable));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits until every desired node has the image.
async fn wait(target: &Target, generation: i64) -> anyhow::Result<PrePullStatus> {
    let screen = Screen::new();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let state = target.state().await?;
        let status = state.status.clone().unwrap_or_default();
        match verdict(target.name(), generation, &state) {
            Verdict::Done => return Ok(status),
            Verdict::Failed(error) => return Err(error.into()),
            Verdict::Wait if status.observed_generation < generation => {}
            Verdict::Wait => {
                let percents = if screen.is_terminal() {
                    target.percents().await
                } else {
                    Vec::new()
                };
                screen.show(&line(&status, &percents));
            }
        }
    }
}

fn verdict(name: &str, generation: i64, state: &State) -> Verdict {
    if !state.is_requested {
        return Verdict::Failed(PullError::Withdrawn(name.to_owned()));
    }
    let status = state.status.as_ref();
    let Some(status) = status.filter(|status| status.observed_generation >= generation) else {
        return Verdict::Wait;
    };
    let name = name.to_owned();
    let message = status.message.clone();
    if status.is_complete() {
        Verdict::Done
    } else if status.is_stalled() {
        Verdict::Failed(PullError::Nodes {
            name,
            failed: status.failed,
            desired: status.desired,
            message,
        })
    } else if status.desired == 0 {
        Verdict::Failed(PullError::None { name, message })
    } else {
        Verdict::Wait
    }
}

/// How far the nodes are.
fn line(status: &PrePullStatus, percents: &[(String, u32)]) -> String {
    let mut parts = vec![format!("{} of {} nodes", status.ready, status.desired)];
    let each: Vec<_> = percents
        .iter()
        .map(|(node, percent)| format!("{node} {percent}%"))
        .collect();
    match (each.is_empty(), status.pulling) {
        (false, _) => parts.push(format!("pulling: {}", each.join(", "))),
        (true, 0) => {}
        (true, count) => parts.push(format!("{count} pulling")),
    }
    if status.failed > 0 {
        parts.push(format!("{} failed: {}", status.failed, status.message));
    }
    parts.join("; ")
}

fn nodes(status: &PrePullStatus) -> String {
    match status.ready {
        1 => "is on 1 node".to_owned(),
        count => format!("is on {count} nodes"),
    }
}

fn unavailable(count: u32) -> String {
    match count {
        1 => "1 node is not available and gets the image later".to_owned(),
        more => format!("{more} nodes are not available and get the image later"),
    }
}

/// One line that changes on a terminal, else a line for each change.
struct Screen {
    bar: ProgressBar,
    last: std::cell::RefCell<String>,
}

impl Screen {
    fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
            bar.set_style(style);
        }
        Self {
            bar,
            last: std::cell::RefCell::default(),
        }
    }

    fn is_terminal(&self) -> bool {
        !self.bar.is_hidden() && std::io::stderr().is_terminal()
    }

    fn show(&self, line: &str) {
        if self.is_terminal() {
            self.bar.set_message(line.to_owned());
            self.bar.tick();
        } else if *self.last.borrow() != line {
            eprintln!("{line}");
            line.clone_into(&mut self.last.borrow_mut());
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The failure of a request about an image.
fn about(target: &Target, error: kube::Error) -> ClusterError {
    match ClusterError::about(target.namespace(), target.name(), error) {
        ClusterError::NotFound { namespace, name } => ClusterError::NoImage { namespace, name },
        other => other,
    }
}

#[cfg(test)]
mod tests;
