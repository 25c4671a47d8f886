//! `events`: the events of a machine, its pods and its tasks.
//!
//! Invariant: the oldest comes first; an event that repeats is one line with a count.
//! Failure: the cluster's.

use std::collections::HashMap;
use std::pin::pin;
use std::process::ExitCode;

use clap::Args;
use crds::guard::Guarded;
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{Config, Event as Change, watcher};

use super::list::age;
use super::requested::{Said, broken};
use crate::cluster::{Cluster, ClusterArgs, ClusterError, listed};
use crate::table::{self, Table};

/// Machine whose events to show.
#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Name of the virtual machine.
    name: String,
    /// Then watch: print further events as they come.
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// One event, as printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EventRow {
    last: Option<Timestamp>,
    kind: String,
    reason: String,
    step: String,
    count: i32,
    message: String,
}

pub(crate) async fn run(args: &EventsArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    let events_found = about(&cluster, &args.name).await?;
    if args.watch {
        let cluster = args.cluster.connect_to_watch().await?;
        follow(&cluster, &args.name).await?;
        return Ok(ExitCode::SUCCESS);
    }
    if events_found.is_empty() {
        // Events are kept for about an hour, so a machine without any is nothing unusual.
        cluster.find(&args.name).await?;
        eprintln!("there are no recent events of {}", args.name);
        return Ok(ExitCode::SUCCESS);
    }
    super::print(&render(&events_found, Timestamp::now()))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the events that there are, then each that comes or is repeated.
async fn follow(cluster: &Cluster, name: &str) -> anyhow::Result<()> {
    let mut screen = Table::new(&HEADER);
    // Lines come one by one; usual values should not move the columns.
    let usual = [10, 7, 20, 14, 0].map(|width| "x".repeat(width));
    screen.measure(&usual);
    super::print(&screen.header())?;
    let api: Api<Guarded<Event>> = cluster.api();
    let mut said = Said::default();
    let mut known = Known::default();
    let mut changes = pin!(watcher(api, Config::default()).default_backoff());
    while let Some(change) = changes.next().await {
        let rows = match change {
            Ok(change) => known.take(change, name),
            Err(error) => {
                said.say(&broken(&error));
                continue;
            }
        };
        for row in rows {
            let cells = row.cells(Timestamp::now());
            screen.measure(&cells);
            super::print(&screen.row(&cells, |_, cell| cell))?;
        }
    }
    Ok(())
}

/// The events that were printed, by their objects, and those of a list that is being read.
#[derive(Debug, Default)]
struct Known {
    printed: HashMap<String, EventRow>,
    listed: Vec<EventRow>,
}

impl Known {
    /// The rows that a change adds, oldest first.
    fn take(&mut self, change: Change<Guarded<Event>>, name: &str) -> Vec<EventRow> {
        match change {
            Change::InitApply(event) => {
                let new = self.new_row(&event, name);
                self.listed.extend(new);
                Vec::new()
            }
            Change::InitDone => {
                self.listed.sort_by_key(|event| event.last);
                std::mem::take(&mut self.listed)
            }
            Change::Apply(event) => self.new_row(&event, name).into_iter().collect(),
            Change::Delete(event) => {
                self.printed.remove(&event.name_any());
                Vec::new()
            }
            Change::Init => Vec::new(),
        }
    }

    /// The row of an event that is about the machine, if it says something new.
    fn new_row(&mut self, event: &Guarded<Event>, name: &str) -> Option<EventRow> {
        let event = event
            .0
            .as_ref()
            .ok()
            .filter(|event| is_about(event, name))?;
        let row = EventRow::from_event(event, name);
        let before = self.printed.insert(event.name_any(), row.clone());
        (before.as_ref() != Some(&row)).then_some(row)
    }
}

/// The events of the machine and its objects, oldest first.
pub(super) async fn about(cluster: &Cluster, name: &str) -> Result<Vec<EventRow>, ClusterError> {
    let api: Api<Guarded<Event>> = cluster.api();
    let events = listed::readable(&api, &ListParams::default()).await?;
    let mut events_found: Vec<_> = events
        .iter()
        .filter(|e| is_about(e, name))
        .map(|e| EventRow::from_event(e, name))
        .collect();
    events_found.sort_by_key(|event| event.last);
    Ok(events_found)
}

/// The machine and its instance have its name; tasks and the placeholder begin with it.
fn is_about(event: &Event, name: &str) -> bool {
    let object = &event.involved_object;
    let named = object.name.as_deref().unwrap_or_default();
    let part = named
        .strip_prefix(name)
        .and_then(|rest| rest.strip_prefix('-'));
    match object.kind.as_deref() {
        Some("VirtualMachine") => named == name,
        Some("Pod") => named == name || is_placeholder(named, name),
        Some("VirtualMachineTask") => part.is_some_and(is_task),
        _ => false,
    }
}

fn is_placeholder(pod: &str, machine: &str) -> bool {
    let uid = pod.rsplit_once(crds::names::PLACEHOLDER_OF);
    uid.is_some_and(|(name, _)| name == machine)
}

/// Tasks are named `<machine>-<kind>-<hash>`; another machine's name may begin with this one's.
fn is_task(rest: &str) -> bool {
    let (kind, hash) = rest.rsplit_once('-').unwrap_or((rest, ""));
    !kind.contains('-') && !hash.is_empty()
}

/// What the object is for in the life of the machine.
fn step(kind: &str, object: &str, machine: &str) -> String {
    let part = object.strip_prefix(machine).unwrap_or_default();
    let part = part.strip_prefix('-').unwrap_or_default();
    match kind {
        "VirtualMachine" => "machine".to_owned(),
        "Pod" if object == machine => "instance".to_owned(),
        "Pod" => "placeholder".to_owned(),
        _ => {
            let task = part.rsplit_once('-').map_or(part, |(kind, _)| kind);
            format!("task {task}")
        }
    }
}

impl EventRow {
    fn from_event(event: &Event, machine: &str) -> Self {
        let micro = event.event_time.as_ref().map(|t| t.0);
        let series = event.series.as_ref();
        let last = series
            .and_then(|s| s.last_observed_time.as_ref())
            .map(|t| t.0);
        let last = last.or_else(|| event.last_timestamp.as_ref().map(|t| t.0));
        let object = &event.involved_object;
        let kind = object.kind.as_deref().unwrap_or_default();
        let name = object.name.as_deref().unwrap_or_default();
        Self {
            step: step(kind, name, machine),
            last: last
                .or(micro)
                .or_else(|| event.metadata.creation_timestamp.as_ref().map(|t| t.0)),
            kind: event.type_.clone().unwrap_or_default(),
            reason: event.reason.clone().unwrap_or_default(),
            count: series
                .and_then(|s| s.count)
                .or(event.count)
                .unwrap_or(1)
                .max(1),
            message: event.message.clone().unwrap_or_default(),
        }
    }

    fn cells(&self, now: Timestamp) -> [String; 5] {
        let times = if self.count > 1 {
            format!(" (x{})", self.count)
        } else {
            String::new()
        };
        [
            age(self.last.map(Time).as_ref(), now) + &times,
            self.kind.clone(),
            self.reason.clone(),
            self.step.clone(),
            self.message.trim().to_owned(),
        ]
    }
}

pub(super) fn render(events_found: &[EventRow], now: Timestamp) -> String {
    let rows: Vec<_> = events_found.iter().map(|event| event.cells(now)).collect();
    table::render(HEADER, &rows)
}

const HEADER: [&str; 5] = ["LAST SEEN", "TYPE", "REASON", "STEP", "MESSAGE"];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PLACEHOLDER: &str = "web-placeholder-of-virtual-machine-1a2b3c4d";

    fn event(kind: &str, name: &str, count: i32) -> Event {
        serde_json::from_value(json!({
            "metadata": {"name": "e"}, "type": "Normal", "reason": "Started", "message": "it runs\n", "count": count,
            "involvedObject": {"kind": kind, "name": name}, "lastTimestamp": "2026-01-01T11:59:00Z",
        }))
        .unwrap()
    }

    #[test]
    fn events_of_the_machine_its_pods_and_tasks_are_its_own() {
        let about_web = |kind, name| is_about(&event(kind, name, 1), "web");
        assert!(about_web("VirtualMachine", "web"));
        assert!(about_web("Pod", "web") && about_web("Pod", PLACEHOLDER));
        assert!(!is_about(&event("Pod", PLACEHOLDER, 1), "we"));
        assert!(about_web("VirtualMachineTask", "web-provision-1a2b"));
        assert!(!about_web("VirtualMachineTask", "web-2-provision-1a2b"));
        assert!(!about_web("VirtualMachine", "web-2") && !about_web("Pod", "web-2"));
        assert!(!about_web("Node", "web"));
    }

    #[test]
    fn a_watch_prints_an_event_once_and_again_when_it_repeats() {
        let guarded = |event: &Event| -> Guarded<Event> {
            serde_json::from_str(&serde_json::to_string(event).unwrap()).unwrap()
        };
        let mut known = Known::default();
        let mut take = |change| known.take(change, "web").len();
        let pod = |count| guarded(&event("Pod", "web", count));
        assert_eq!(take(Change::Init), 0);
        assert_eq!(take(Change::InitApply(pod(1))), 0);
        let other = guarded(&event("Pod", "other", 1));
        assert_eq!(take(Change::InitApply(other)), 0);
        assert_eq!(take(Change::InitDone), 1);
        assert_eq!(take(Change::Apply(pod(1))), 0);
        assert_eq!(take(Change::Apply(pod(2))), 1);
        // The watch begins again with a list.
        assert_eq!(take(Change::Init), 0);
        assert_eq!(take(Change::InitApply(pod(2))), 0);
        assert_eq!(take(Change::InitDone), 0);
    }

    #[test]
    fn repeated_events_have_a_count() {
        let events_found = [
            EventRow::from_event(&event("Pod", PLACEHOLDER, 1), "web"),
            EventRow::from_event(&event("VirtualMachineTask", "web-provision-1a2b", 1), "web"),
            EventRow::from_event(&event("Pod", "web", 1), "web"),
            EventRow::from_event(&event("VirtualMachine", "web", 7), "web"),
        ];
        insta::assert_snapshot!(render(&events_found, "2026-01-01T12:00:00Z".parse().unwrap()), @r"
        LAST SEEN  TYPE    REASON   STEP            MESSAGE
        60s        Normal  Started  placeholder     it runs
        60s        Normal  Started  task provision  it runs
        60s        Normal  Started  instance        it runs
        60s (x7)   Normal  Started  machine         it runs
        ");
    }
}
