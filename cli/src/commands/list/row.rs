//! A line about a machine.
//!
//! Invariant: a value that is not known is a dash.
//! Failure: none.

use std::time::Duration;

use crds::VirtualMachine;
use crds::guard::Unreadable;
use crds::vm::PrintableStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use lifecycle::DesiredState;

use crate::cluster::listed;
use crate::colour::Colour;
use crate::table::{self, Table};

/// Which columns a table has.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Columns {
    pub(crate) namespace: bool,
    pub(crate) wide: bool,
    pub(crate) progress: bool,
}

/// One machine, as printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    namespace: String,
    name: String,
    status: Option<PrintableStatus>,
    ready: &'static str,
    ip: String,
    node: String,
    age: String,
    desired_state: String,
    class: String,
    image: String,
    progress: String,
}

impl Row {
    pub(crate) fn for_machine(vm: &VirtualMachine, progress: String, now: Timestamp) -> Self {
        let status = vm.status.clone().unwrap_or_default();
        let network = status.network.unwrap_or_default();
        let spec = &vm.spec;
        let image = spec.image.as_ref().map(|i| i.name.clone());
        Self {
            namespace: vm.namespace().unwrap_or_default(),
            name: vm.name_any(),
            status: status.printable_status,
            ready: if status.ready { "True" } else { "False" },
            ip: dash(network.primary_ip4.or(network.primary_ip6)),
            node: dash(status.node_name),
            age: age(vm.metadata.creation_timestamp.as_ref(), now),
            desired_state: desired_state(vm),
            class: dash(spec.class_name.clone()),
            image: dash(spec.image_name.clone().or(image)),
            progress,
        }
    }

    /// A machine of which no more is known than its name.
    pub(crate) fn unreadable(unreadable: &Unreadable, now: Timestamp) -> Self {
        let meta = &unreadable.metadata;
        Self {
            namespace: dash(meta.namespace.clone()),
            name: dash(meta.name.clone()),
            status: None,
            ready: "-",
            ip: dash(None),
            node: dash(None),
            age: age(meta.creation_timestamp.as_ref(), now),
            desired_state: dash(None),
            class: dash(None),
            image: dash(None),
            progress: listed::text(unreadable),
        }
    }

    /// Whether there is anything for the last column.
    pub(crate) const fn has_progress(&self) -> bool {
        !self.progress.is_empty()
    }

    /// Whether the two differ in nothing but their age.
    pub(crate) fn says_the_same(&self, other: &Self) -> bool {
        let other = Self {
            age: self.age.clone(),
            ..other.clone()
        };
        *self == other
    }

    /// Values as wide as they usually are.
    pub(crate) fn usual() -> Self {
        Self {
            namespace: "x".repeat(12),
            name: "x".repeat(16),
            status: Some(PrintableStatus::ErrorUnschedulable),
            ready: "False",
            ip: "255.255.255.255".into(),
            node: "x".repeat(12),
            age: "100m".into(),
            desired_state: "runStrategy=Always".into(),
            class: "x".repeat(8),
            image: "x".repeat(12),
            progress: String::new(),
        }
    }

    /// The last line about a machine.
    pub(crate) fn gone(self) -> Self {
        Self {
            status: None,
            ready: "False",
            progress: "deleted".into(),
            ..self
        }
    }

    pub(crate) fn cells(&self, columns: Columns) -> Vec<String> {
        let status = self
            .status
            .map_or("-".to_owned(), |word| format!("{word:?}"));
        let mut cells = Vec::new();
        if columns.namespace {
            cells.push(self.namespace.clone());
        }
        cells.extend([self.name.clone(), status, self.ready.to_owned()]);
        cells.extend([self.ip.clone(), self.node.clone()]);
        if columns.wide {
            cells.extend([
                self.desired_state.clone(),
                self.class.clone(),
                self.image.clone(),
            ]);
        }
        cells.push(self.age.clone());
        if columns.progress {
            cells.push(self.progress.clone());
        }
        cells
    }

    /// The line, with the status in its colour.
    pub(crate) fn line(&self, table: &Table, columns: Columns, coloured: bool) -> String {
        let status = 1 + usize::from(columns.namespace);
        let colour = self.status.filter(|_| coloured).map(Colour::for_word);
        table.row(&self.cells(columns), |column, text| match colour {
            Some(colour) if column == status => colour.paint(&text),
            _ => text,
        })
    }
}

/// The header, and columns of their least width.
pub(crate) fn table(columns: Columns) -> Table {
    let mut header = vec!["NAME", "STATUS", "READY", "IP", "NODE"];
    if columns.namespace {
        header.insert(0, "NAMESPACE");
    }
    if columns.wide {
        header.extend(["DESIRED", "CLASS", "IMAGE"]);
    }
    header.push("AGE");
    if columns.progress {
        header.push("PROGRESS");
    }
    Table::new(&header)
}

pub(crate) fn render(rows: &[Row], columns: Columns, coloured: bool) -> String {
    let mut table = table(columns);
    for row in rows {
        table.measure(&row.cells(columns));
    }
    let lines = rows.iter().map(|row| row.line(&table, columns, coloured));
    std::iter::once(table.header()).chain(lines).collect()
}

/// The desired state in the field that its owner uses.
pub(crate) fn desired_state(vm: &VirtualMachine) -> String {
    match DesiredState::from_spec(&vm.spec) {
        Ok(Some(desired_state)) => desired_state.to_string(),
        Ok(None) => "-".into(),
        Err(_) => "contradictory".into(),
    }
}

pub(crate) fn age(since: Option<&Time>, now: Timestamp) -> String {
    let passed = since.map(|since| Duration::try_from(now.duration_since(since.0)));
    passed.map_or("-".into(), |passed| table::age(passed.unwrap_or_default()))
}

/// The text, or a dash for none.
pub(crate) fn dash(text: Option<String>) -> String {
    text.filter(|t| !t.is_empty()).unwrap_or_else(|| "-".into())
}

#[cfg(test)]
mod tests;
