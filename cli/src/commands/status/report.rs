//! The text that `status` prints.
//!
//! Invariant: texts of guests, images and other people reach the terminal without control
//! characters.
//! Failure: what is unknown is left out, what may not be read is said to be.

use std::fmt::Write as _;

use crds::conditions::is_well;
use crds::vm::VirtualMachineStatus;
use crds::{VirtualMachine, VirtualMachineTask};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use lifecycle::{Instance, NodeState};

use super::super::events::{self, EventRow};
use super::super::list::desired_state;
use crate::colour::Colour;
use crate::table::{self, printable};

/// The newest events that are shown.
const EVENTS: usize = 10;

/// What was found out about a machine.
pub(super) struct Report<'a> {
    pub(super) vm: &'a VirtualMachine,
    pub(super) pod: Option<&'a Pod>,
    /// `None`: they may not be read.
    pub(super) tasks: Option<&'a [VirtualMachineTask]>,
    /// `None`: they may not be read.
    pub(super) events: Option<&'a [EventRow]>,
    /// Whether conditions that are as they should be are shown.
    pub(super) verbose: bool,
    pub(super) now: Timestamp,
}

impl Report<'_> {
    pub(super) fn render(&self, coloured: bool) -> String {
        let status = self.vm.status.clone().unwrap_or_default();
        let mut text = self.head(&status, coloured);
        text.push_str(&self.instance(&status));
        text.push_str(&Self::requests(&status));
        text.push_str(&self.conditions(&status));
        text.push_str(&self.tasks());
        text.push_str(&self.events());
        text
    }

    fn head(&self, status: &VirtualMachineStatus, coloured: bool) -> String {
        let spec = &self.vm.spec;
        let word = status.printable_status;
        let shown = word.map_or("unknown: the controller has not seen it yet".into(), |w| {
            let name = format!("{w:?}");
            if coloured {
                Colour::for_word(w).paint(&name)
            } else {
                name
            }
        });
        let network = status.network.clone().unwrap_or_default();
        let addresses: Vec<_> = [network.primary_ip4, network.primary_ip6]
            .into_iter()
            .flatten()
            .collect();
        let image = spec
            .image_name
            .clone()
            .or_else(|| spec.image.as_ref().map(|i| i.name.clone()));
        let size = spec
            .hardware
            .as_ref()
            .map(|h| format!("{} vCPU, {} of memory", h.cpus, h.memory.0));
        let power = status.power_state.map(|p| format!("{p:?}"));
        let fields = [
            ("Name", Some(self.vm.name_any())),
            ("Namespace", self.vm.namespace()),
            ("Status", None),
            ("Desired", Some(desired_state(self.vm))),
            ("Power", power),
            ("Paused", spec.paused.then(|| "wanted".to_owned())),
            ("Class", spec.class_name.clone()),
            ("Size", size),
            ("Image", image),
            ("Node", status.node_name.clone()),
            ("Addresses", Some(addresses.join(", "))),
            (
                "Guest",
                status.guest.as_ref().and_then(|g| g.os_name.clone()),
            ),
            (
                "Deletion",
                self.vm
                    .metadata
                    .deletion_timestamp
                    .as_ref()
                    .map(|t| format!("since {}", t.0)),
            ),
        ];
        let mut text = String::new();
        for (name, value) in fields {
            if name == "Status" {
                line(&mut text, name, &shown);
            } else if let Some(value) = value.filter(|v| !v.is_empty()) {
                line(&mut text, name, &printable(&value));
            }
        }
        text
    }

    fn instance(&self, status: &VirtualMachineStatus) -> String {
        let mut text = String::new();
        if let Some(pod) = self.pod {
            let instance = Instance::from_pod(pod, NodeState::Ready);
            let mut words = vec![format!("{}, {}", pod.name_any(), instance.phase)];
            if instance.deleting {
                let until = pod.metadata.deletion_timestamp.as_ref();
                let until = until.map(|t| format!("being deleted, has time until {}", t.0));
                words.extend(until);
            }
            words.extend(
                instance
                    .started_at
                    .map(|t| format!("running since {}", t.0)),
            );
            line(&mut text, "Pod", &printable(&words.join(", ")));
            let obstacle = instance.message;
            if !obstacle.is_empty() {
                line(&mut text, "", &printable(&obstacle));
            }
        }
        let last = status.instance.as_ref();
        if let Some(last) = last.filter(|last| last.finished_at.is_some() || last.reason.is_some())
        {
            let mut words = vec![last.reason.clone().unwrap_or_default()];
            words.extend(last.exit_code.map(|code| format!("exit code {code}")));
            words.extend(last.finished_at.as_ref().map(|t| format!("at {}", t.0)));
            words.extend(last.message.clone());
            line(&mut text, "Last end", &printable(&words.join(", ")));
        }
        if let Some(failure) = &status.start_failure {
            let retry = failure
                .retry_after_timestamp
                .as_ref()
                .filter(|at| at.0 > self.now);
            let next = retry.map(|at| format!(", next start at {}", at.0));
            let count = failure.consecutive_fail_count;
            line(
                &mut text,
                "Failures",
                &format!("{count} in a row{}", next.unwrap_or_default()),
            );
        }
        text
    }

    fn requests(status: &VirtualMachineStatus) -> String {
        let mut text = String::new();
        let queue: Vec<_> = status
            .state_change_requests
            .iter()
            .map(|r| format!("{:?}", r.action))
            .collect();
        if !queue.is_empty() {
            line(&mut text, "Requests", &queue.join(", "));
        }
        text
    }

    fn conditions(&self, status: &VirtualMachineStatus) -> String {
        let (well, mut shown): (Vec<_>, Vec<_>) =
            status.conditions.iter().partition(|c| is_well(c));
        let hidden = if self.verbose {
            shown.extend(well);
            String::new()
        } else if well.is_empty() {
            String::new()
        } else {
            format!("\nConditions as expected: {} (-v shows them)\n", well.len())
        };
        let rows: Vec<_> = shown
            .into_iter()
            .map(|c| {
                let age = super::super::list::age(Some(&c.last_transition_time), self.now);
                [
                    c.type_.clone(),
                    c.status.clone(),
                    age,
                    c.reason.clone(),
                    c.message.clone(),
                ]
            })
            .collect();
        let table = table::render(["TYPE", "STATUS", "AGE", "REASON", "MESSAGE"], &rows);
        section("Conditions", &table, rows.len()) + &hidden
    }

    fn tasks(&self) -> String {
        let Some(tasks) = self.tasks else {
            return "\nTasks: you may not read them\n".into();
        };
        let rows: Vec<_> = tasks
            .iter()
            .map(|task| {
                let status = task.status.clone().unwrap_or_default();
                let state = status
                    .state
                    .map_or("waits for its node".into(), |s| format!("{s:?}"));
                [
                    format!("{:?}", task.spec.kind),
                    state,
                    format!("{}%", status.progress_percent),
                    task.spec.node_name.clone(),
                    super::super::list::age(task.metadata.creation_timestamp.as_ref(), self.now),
                    status.message,
                ]
            })
            .collect();
        section(
            "Tasks",
            &table::render(["KIND", "STATE", "DONE", "NODE", "AGE", "MESSAGE"], &rows),
            rows.len(),
        )
    }

    fn events(&self) -> String {
        let Some(all) = self.events else {
            return "\nEvents: you may not read them\n".into();
        };
        let newest = &all[all.len().saturating_sub(EVENTS)..];
        section("Events", &events::render(newest, self.now), newest.len())
    }
}

fn line(text: &mut String, name: &str, value: &str) {
    let name = if name.is_empty() {
        String::new()
    } else {
        format!("{name}:")
    };
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{name:12}{value}");
}

fn section(title: &str, table: &str, rows: usize) -> String {
    if rows == 0 {
        return String::new();
    }
    let body: String = table.lines().map(|line| format!("  {line}\n")).collect();
    format!("\n{title}:\n{body}")
}

#[cfg(test)]
mod tests;
