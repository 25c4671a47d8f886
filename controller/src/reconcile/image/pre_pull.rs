//! Lets nodes pull an image before a machine needs it, by tasks.
//!
//! ```text
//! desired node ─► task ─ Success ─► node recorded, task deleted
//!      ▲            └─── Error ────► counted; after a while ─┐
//!      └─────────────────────────────────────────────────────┘
//! ```
//!
//! Invariant: at most [`MOST`] nodes pull an image at once; a node that pulled a source, or that
//! kubelet reports to have it, does not pull it again. A task for another source, or on a node that
//! is no longer desired, is deleted, which cancels it.
//! Failure: a pull that failed shows in `status.prePull` and is repeated; nodes that were not tried
//! yet precede it.

mod hold;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crds::{PrePull, PrePullStatus, TaskKind, TaskState, VirtualMachineTask};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

pub(super) use self::hold::Hold;
use self::words::{FORMER, FULL, NO_NODE, NONE_ABLE, UNSUPPORTED};
use super::name::Named;
use super::nodes::Holders;
use super::object::Object;
use super::task::{self, Created};
use super::update::Updates;
use super::{LONGEST, RECHECK};
use crate::context::Context;
use crate::flow::Outcome;
use crate::reconcile::node_tasks;

/// Nodes that pull one image at once: a source serves them all.
const MOST: usize = 3;

/// What nodes do for `spec.prePull`.
#[derive(Debug, Clone, Default)]
pub(super) struct Pulls {
    /// The status; none without the request.
    pub(super) status: Option<PrePullStatus>,
    /// When the image is to be checked again.
    pub(super) again: Option<Duration>,
}

/// What a node of the selector does.
enum State {
    /// It has the image.
    Has,
    /// Its task has not ended.
    Pulls,
    /// It failed a short time ago.
    Failed {
        ended: Option<Timestamp>,
        message: String,
        again: Duration,
    },
    /// It is to pull the image now; in place of a task that ended.
    Due(Option<Arc<VirtualMachineTask>>),
    /// It cannot.
    Unavailable,
    /// It has no agent: it runs no virtual machines.
    NotOurs,
}

/// What is known when the image is checked.
struct View<'a> {
    ctx: &'a Context,
    holders: &'a Holders,
    /// Those that pulled this source.
    recorded: BTreeSet<String>,
    /// Those whose agents can do it.
    able: BTreeSet<String>,
    /// Those with an agent.
    known: BTreeSet<String>,
    /// By node.
    tasks: BTreeMap<String, Arc<VirtualMachineTask>>,
    /// When a failure that does not pass by itself is repeated.
    hold: Hold,
    /// The failure that stays in the status until its node has the image; empty where the newest one counts.
    shown: String,
}

/// Nodes that are to have a version of an image before new machines use it.
pub(super) struct NodeSet<'a> {
    pub(super) nodes: &'a BTreeMap<String, Arc<Node>>,
    /// Those of them that pulled it.
    pub(super) recorded: BTreeSet<String>,
    /// The failure on record, if there is one.
    pub(super) message: String,
    pub(super) hold: Hold,
}

/// The pulls of a version that new machines do not use yet; begins what is next.
pub(super) async fn observe_version(
    ctx: &Context,
    object: &Object,
    named: &Named,
    holders: &Holders,
    set: NodeSet<'_>,
) -> Outcome<Pulls> {
    let all = ctx.stores.tasks_of(object.uid()).into_iter();
    let all = all.filter(|task| task.spec.kind == TaskKind::PullImage);
    let is_of_version =
        |task: &Arc<VirtualMachineTask>| task.spec.image.as_ref() == Some(&named.name);
    let tasks = all.filter(is_of_version).collect();
    let view = View {
        ctx,
        holders,
        recorded: set.recorded,
        able: able(ctx),
        known: ctx.stores.agents.known(),
        tasks: current_tasks(ctx, object, named, (set.nodes, tasks)).await?,
        hold: set.hold,
        shown: set.message,
    };
    let mut pulls = view.act(object, named, set.nodes).await?;
    // The sentences of a pre-pull are about its selector.
    let status = pulls.status.as_mut().filter(|status| status.failed == 0);
    if let Some(status) = status {
        status.message.clear();
    }
    Ok(pulls)
}

/// Its state; begins what is next.
pub(super) async fn observe(
    ctx: &Context,
    object: &Object,
    named: Option<&Named>,
    holders: &Holders,
    updates: &Updates,
) -> Outcome<Pulls> {
    let all = ctx.stores.tasks_of(object.uid()).into_iter();
    let all = all.filter(|task| task.spec.kind == TaskKind::PullImage);
    let all = all.filter(|task| !updates.pulls(task.spec.image.as_deref()));
    let named = named.filter(|_| !object.needs_credentials());
    let (Some(wanted), Some(named)) = (object.pre_pull(), named) else {
        for task in all {
            node_tasks::remove(ctx, &task).await?;
        }
        let refused = object.pre_pull().filter(|_| !object.lacks_version());
        let refused = refused.map(|_| PrePullStatus {
            observed_generation: object.generation(),
            message: UNSUPPORTED.to_owned(),
            ..PrePullStatus::default()
        });
        return Ok(Pulls {
            status: refused,
            again: None,
        });
    };
    if updates.pulls(Some(&named.name)) {
        // Machines use, by a pin, a version that nodes pull for the update: these tasks are all.
        for task in all {
            node_tasks::remove(ctx, &task).await?;
        }
        let update = updates.status.as_ref();
        return Ok(Pulls {
            status: update.and_then(|update| update.pulls.clone()),
            again: None,
        });
    }
    let mut nodes = matching(ctx, wanted);
    let known = object.status().filter(|status| object.is_of_source(status));
    let known = known.and_then(|status| status.pre_pull.as_ref());
    let known = known.into_iter().chain(object.pulls_of_version());
    let recorded: BTreeSet<_> = known.flat_map(|pulls| pulls.nodes.clone()).collect();
    let is_former = object.has_former_file();
    if is_former {
        nodes.retain(|node, _| recorded.contains(node) || holders.nodes.contains(node));
    }
    let view = View {
        ctx,
        holders,
        recorded,
        able: able(ctx),
        known: ctx.stores.agents.known(),
        tasks: current_tasks(ctx, object, named, (&nodes, all.collect())).await?,
        hold: Hold::Short,
        shown: String::new(),
    };
    let mut pulls = view.act(object, named, &nodes).await?;
    if let Some(status) = pulls.status.as_mut().filter(|_| is_former) {
        FORMER.clone_into(&mut status.message);
    }
    Ok(pulls)
}

/// Those of the tasks that are for this name and these nodes; deletes the others.
async fn current_tasks(
    ctx: &Context,
    object: &Object,
    named: &Named,
    (nodes, all): (&BTreeMap<String, Arc<Node>>, Vec<Arc<VirtualMachineTask>>),
) -> Outcome<BTreeMap<String, Arc<VirtualMachineTask>>> {
    let mut tasks = BTreeMap::new();
    for task in all {
        let node = task.spec.node_name.clone();
        let is_current = task.name_any() == task_name(object, named, &node);
        if is_current && nodes.contains_key(&node) {
            tasks.insert(node, task);
        } else {
            node_tasks::remove(ctx, &task).await?;
        }
    }
    Ok(tasks)
}

impl View<'_> {
    async fn act(
        self,
        object: &Object,
        named: &Named,
        nodes: &BTreeMap<String, Arc<Node>>,
    ) -> Outcome<Pulls> {
        let mut status = PrePullStatus {
            observed_generation: object.generation(),
            nodes: self.pulled(nodes),
            ..PrePullStatus::default()
        };
        let mut again = None::<Duration>;
        let mut failures = BTreeMap::new();
        let mut due = Vec::new();
        for (name, node) in nodes {
            match self.state(name, node) {
                State::Has => {
                    status.ready += 1;
                    self.clean(name).await?;
                }
                State::Pulls => status.pulling += 1,
                State::Failed {
                    ended,
                    message,
                    again: left,
                } => {
                    status.failed += 1;
                    again = Some(again.map_or(left, |again| again.min(left)));
                    failures.insert(name.as_str(), (ended, message));
                }
                State::Due(old) => due.push((name, old)),
                State::Unavailable => status.unavailable += 1,
                State::NotOurs => {}
            }
        }
        let open = usize::try_from(status.pulling).unwrap_or(MOST);
        let room = PrePullStatus::MOST_NODES.saturating_sub(status.nodes.len() + open);
        let is_full = room == 0 && open == 0 && !due.is_empty();
        if is_full {
            status.unavailable += count(due.len());
            due.clear();
        }
        status.desired = status.ready + status.pulling + status.failed + count(due.len());
        // Those that failed come after those that were not tried, in the order of their ends.
        due.sort_by_key(|(name, old)| (old.as_deref().map(ended), *name));
        for (name, old) in due.into_iter().take(MOST.saturating_sub(open).min(room)) {
            if let Some(old) = old {
                node_tasks::remove_unchanged(self.ctx, &old).await?;
            }
            let task = task_name(object, named, name);
            let what = (TaskKind::PullImage, task.as_str());
            if task::create(self.ctx, object, named, name, what).await? == Created::Yes {
                status.pulling += 1;
            }
        }
        status.message = match self.failure(&failures) {
            Some(message) => message,
            None if nodes.is_empty() => NO_NODE.to_owned(),
            None if is_full => FULL.to_owned(),
            None if status.desired == 0 => NONE_ABLE.to_owned(),
            None => String::new(),
        };
        let end = status.message.floor_char_boundary(LONGEST);
        status.message.truncate(end);
        if !status.is_complete() {
            // An agent that goes away has no event here.
            again = Some(again.map_or(RECHECK, |again| again.min(RECHECK)));
        }
        Ok(Pulls {
            status: Some(status),
            again,
        })
    }

    /// The failure for the status: the newest one, or, where one stays, that of the same node.
    fn failure(&self, all: &BTreeMap<&str, (Option<Timestamp>, String)>) -> Option<String> {
        let shown = node_of(&self.shown).and_then(|node| all.get_key_value(node));
        let newest = || all.iter().max_by_key(|(_, (ended, _))| *ended);
        let (node, (_, message)) = shown.or_else(newest)?;
        Some(format!("node {node}: {message}"))
    }

    fn state(&self, name: &str, node: &Node) -> State {
        let task = self.tasks.get(name);
        let state = task.and_then(|task| task.state());
        let is_held = self.recorded.contains(name) || self.holders.nodes.contains(name);
        if is_held || state == Some(TaskState::Success) {
            return State::Has;
        }
        if !self.known.contains(name) {
            return State::NotOurs;
        }
        let is_open = task.is_some_and(|task| !task.is_final());
        if is_open && self.ctx.stores.agents.lives(name) {
            return State::Pulls;
        }
        let is_cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable);
        if is_open || is_cordoned == Some(true) || !self.able.contains(name) {
            return State::Unavailable;
        }
        let failed = task.filter(|_| state == Some(TaskState::Error));
        let held = failed.and_then(|task| {
            let hold = self.hold.seconds(task);
            Some((task, task::held_for(self.ctx, task, hold)?))
        });
        match held {
            Some((task, again)) => State::Failed {
                ended: ended(task),
                message: task.status.clone().unwrap_or_default().message,
                again,
            },
            None => State::Due(task.cloned()),
        }
    }

    /// Those that pulled the image, with those whose task has ended just now.
    fn pulled(&self, nodes: &BTreeMap<String, Arc<Node>>) -> Vec<String> {
        let has_pulled = |name: &&String| {
            let task = self.tasks.get(*name).and_then(|task| task.state());
            self.recorded.contains(*name) || task == Some(TaskState::Success)
        };
        let all = nodes.keys().filter(has_pulled).cloned();
        all.take(PrePullStatus::MOST_NODES).collect()
    }

    /// Deletes the task of a node that has the image once it is on record, or once it says nothing
    /// more.
    async fn clean(&self, node: &str) -> Outcome<()> {
        match self.tasks.get(node) {
            Some(task) if task.state() == Some(TaskState::Success) => {
                if self.recorded.contains(node) {
                    node_tasks::remove_unchanged(self.ctx, task).await?;
                }
                Ok(())
            }
            Some(task) if task.is_final() => node_tasks::remove_unchanged(self.ctx, task).await,
            _ => Ok(()),
        }
    }
}

/// The node of a failure in a status.
pub(super) fn node_of(message: &str) -> Option<&str> {
    let node = message.strip_prefix("node ")?.split_once(": ")?;
    Some(node.0)
}

/// The nodes of the selector.
pub(super) fn matching(ctx: &Context, wanted: &PrePull) -> BTreeMap<String, Arc<Node>> {
    let has_labels = |node: &Arc<Node>| {
        let labels = node.labels();
        let mut all = wanted.node_selector.iter();
        all.all(|(key, value)| labels.get(key) == Some(value))
    };
    let nodes = ctx.stores.nodes.state().into_iter();
    let nodes = nodes.filter(has_labels);
    nodes.map(|node| (node.name_any(), node)).collect()
}

fn able(ctx: &Context) -> BTreeSet<String> {
    let kind = format!("{:?}", TaskKind::PullImage);
    ctx.stores.agents.able(&kind).into_iter().collect()
}

/// When it ended, by the clock of its node.
fn ended(task: &VirtualMachineTask) -> Option<Timestamp> {
    let status = task.status.as_ref()?;
    status.completion_time.as_ref().map(|time| time.0)
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn task_name(object: &Object, named: &Named, node: &str) -> String {
    let seed = format!("{}/{node}", object.seed(&named.name));
    node_tasks::name(&object.key().name, TaskKind::PullImage, &seed)
}
