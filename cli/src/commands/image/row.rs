//! A line about an image.
//!
//! Invariant: a value that is not known is a dash; a message is there only for an image that is not
//! ready.
//! Failure: none.

use crds::conditions::{READY, find};
use crds::guard::Unreadable;
use crds::{
    ClusterVirtualMachineImage, ImageSource, PrePullStatus, VirtualMachineImage,
    VirtualMachineImageStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;

use crate::cluster::listed;
use crate::commands::list::{age, dash};
use crate::table::Table;

/// Which columns a table has beside those that it always has.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Columns {
    pub(super) namespace: bool,
    pub(super) source: bool,
}

/// One image, as printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    namespace: String,
    name: String,
    scope: &'static str,
    type_: String,
    size: String,
    nodes: String,
    /// Of the nodes that are to have it before a machine needs it; empty without such a request.
    pre_pull: String,
    ready: String,
    age: String,
    source: String,
    message: String,
}

impl Row {
    pub(super) fn of_namespace(image: &VirtualMachineImage, now: Timestamp) -> Self {
        let status = image.status.clone().unwrap_or_default();
        Self::for_image(
            "namespace",
            &image.metadata,
            &image.spec.source,
            status,
            now,
        )
    }

    pub(super) fn of_cluster(image: &ClusterVirtualMachineImage, now: Timestamp) -> Self {
        let status = image.status.clone().unwrap_or_default();
        Self::for_image("cluster", &image.metadata, &image.spec.source, status, now)
    }

    /// An image of which no more is known than its name.
    pub(super) fn unreadable(scope: &'static str, unreadable: &Unreadable, now: Timestamp) -> Self {
        let meta = &unreadable.metadata;
        Self {
            namespace: dash(meta.namespace.clone()),
            name: dash(meta.name.clone()),
            scope,
            type_: dash(None),
            size: dash(None),
            nodes: dash(None),
            pre_pull: String::new(),
            ready: dash(None),
            age: age(meta.creation_timestamp.as_ref(), now),
            source: dash(None),
            message: listed::text(unreadable),
        }
    }

    fn for_image(
        scope: &'static str,
        meta: &ObjectMeta,
        source: &ImageSource,
        status: VirtualMachineImageStatus,
        now: Timestamp,
    ) -> Self {
        let (ready, message) = ready(&status);
        let pre_pull = status.pre_pull.as_ref().map(pulled).unwrap_or_default();
        let size = status.disks.into_iter().next().and_then(|disk| disk.limit);
        Self {
            namespace: dash(meta.namespace.clone()),
            name: dash(meta.name.clone()),
            scope,
            type_: dash(status.type_),
            size: dash(size.map(|size| size.0)),
            nodes: dash(status.node_count.map(|count| count.to_string())),
            pre_pull,
            ready,
            age: age(meta.creation_timestamp.as_ref(), now),
            source: dash(origin(source)),
            message,
        }
    }

    fn cells(&self, columns: Columns, has: Has) -> Vec<String> {
        let mut cells = Vec::new();
        if columns.namespace {
            cells.push(self.namespace.clone());
        }
        cells.extend([self.name.clone(), self.scope.to_owned()]);
        cells.extend([self.type_.clone(), self.size.clone(), self.nodes.clone()]);
        if has.pre_pull {
            cells.push(dash(Some(self.pre_pull.clone())));
        }
        cells.extend([self.ready.clone(), self.age.clone()]);
        if columns.source {
            cells.push(self.source.clone());
        }
        if has.message {
            cells.push(self.message.clone());
        }
        cells
    }
}

/// Columns that are there only if a row has something to show in them.
#[derive(Debug, Clone, Copy)]
struct Has {
    message: bool,
    pre_pull: bool,
}

/// How many of the desired nodes have it, and how many failed.
fn pulled(status: &PrePullStatus) -> String {
    let done = format!("{}/{}", status.ready, status.desired);
    match status.failed {
        0 => done,
        failed => format!("{done} ({failed} failed)"),
    }
}

/// Whether it is ready, why not, and the sentence about that.
fn ready(status: &VirtualMachineImageStatus) -> (String, String) {
    match find(&status.conditions, READY) {
        None => (dash(None), String::new()),
        Some(ready) if ready.status == "True" => ("True".to_owned(), String::new()),
        Some(ready) => {
            let why = format!("{}: {}", ready.status, ready.reason);
            (why, ready.message.trim().to_owned())
        }
    }
}

fn origin(source: &ImageSource) -> Option<String> {
    let http = source.http.as_ref().map(|http| http.url.clone());
    let oci = || Some(format!("oci:{}", source.oci.as_ref()?.reference));
    let pvc = || Some(format!("pvc:{}", source.pvc.as_ref()?.name));
    http.or_else(oci).or_else(pvc)
}

pub(super) fn render(rows: &[Row], columns: Columns) -> String {
    let has = Has {
        message: rows.iter().any(|row| !row.message.is_empty()),
        pre_pull: rows.iter().any(|row| !row.pre_pull.is_empty()),
    };
    let mut header = vec!["NAME", "SCOPE", "TYPE", "SIZE", "NODES", "READY", "AGE"];
    if has.pre_pull {
        header.insert(5, "PRE-PULL");
    }
    if columns.namespace {
        header.insert(0, "NAMESPACE");
    }
    if columns.source {
        header.push("SOURCE");
    }
    if has.message {
        header.push("MESSAGE");
    }
    let mut table = Table::new(&header);
    let rows: Vec<_> = rows.iter().map(|row| row.cells(columns, has)).collect();
    for row in &rows {
        table.measure(row);
    }
    let lines = rows.iter().map(|row| table.row(row, |_, text| text));
    std::iter::once(table.header()).chain(lines).collect()
}

#[cfg(test)]
mod tests;
