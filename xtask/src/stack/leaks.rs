//! Looks for everything that a stack may have left behind, and for panics of its programs.
//!
//! Invariant: looking changes nothing; each finding names the thing so that it can be looked at.
//! Failure: a place that cannot be looked at is itself reported, since it may hide something.

pub(crate) mod cgroups;
mod files;
pub(crate) mod mounts;
mod panics;
pub(crate) mod processes;
mod traffic;

use std::fmt;

use anyhow::Result;

use super::cluster::PEER_PREFIX;
use super::netns::{self, NODE_LINK, POD_BRIDGE};
use super::{Layout, Record};
use crate::run;

/// How the names of our tables of packet filters begin: see `libs/netns/src/filter.rs`.
const OWN_TABLES: &str = "vmlet";

/// One thing that should not be there any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leak {
    /// What sort of thing.
    pub(crate) kind: &'static str,
    /// Which one.
    pub(crate) what: String,
}

impl Leak {
    /// A finding.
    pub(crate) fn new(kind: &'static str, what: impl Into<String>) -> Self {
        Self {
            kind,
            what: what.into(),
        }
    }
}

impl fmt::Display for Leak {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.kind, self.what)
    }
}

/// What became of the pods before the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pods {
    /// They were gone, kubelet had time to tidy up after them.
    Gone,
    /// Some were left running: what kubelet holds for them is no leak.
    Abandoned,
}

/// Everything found while libvirtd still runs and our own programs do not.
pub(crate) fn find(
    layout: &Layout,
    record: &Record,
    supervisor: Option<i32>,
    pods: Pods,
) -> Vec<Leak> {
    let searches: [(&'static str, Result<Vec<Leak>>); 9] = [
        ("processes", processes::find(layout, supervisor)),
        ("libvirt domains", domains(layout)),
        ("links", links(layout, record)),
        ("packet filters", packet_filters(layout)),
        ("traffic control", traffic::find(layout)),
        ("mounts", mounts::find(layout, record, supervisor, pods)),
        ("cgroups", cgroups::find(layout, record, pods)),
        ("files", files::find(layout)),
        ("panics", panics::find(layout)),
    ];
    let mut found = Vec::new();
    for (what, outcome) in searches {
        match outcome {
            Ok(leaks) => found.extend(leaks),
            Err(error) => found.push(Leak::new(
                "unknown",
                format!("cannot look for {what}: {error:#}"),
            )),
        }
    }
    found
}

fn domains(layout: &Layout) -> Result<Vec<Leak>> {
    let mut virsh = run::command("virsh");
    virsh.args([
        "-c",
        &layout.libvirt_uri(),
        "--quiet",
        "list",
        "--all",
        "--name",
    ]);
    let names = match run::capture_within(&mut virsh, std::time::Duration::from_secs(60))? {
        Some(output) if output.status.success() => String::from_utf8_lossy(&output.stdout)
            .lines()
            .map(str::to_owned)
            .collect(),
        // libvirtd no longer exists; what it knew is in its files.
        _ => files::domain_names(layout)?,
    };
    let names = names.into_iter().filter(|name| !name.is_empty());
    Ok(names.map(|name| Leak::new("domain", name)).collect())
}

fn links(layout: &Layout, record: &Record) -> Result<Vec<Leak>> {
    if !layout.netns_path().exists() {
        return Ok(vec![Leak::new(
            "lost",
            format!("network namespace {}", layout.netns_name()),
        )]);
    }
    Ok(foreign_links(netns::links(layout)?, &record.kernel_links))
}

/// Tables of ours in the node's namespace: those of pods are in namespaces of their own.
fn packet_filters(layout: &Layout) -> Result<Vec<Leak>> {
    if !layout.netns_path().exists() {
        return Ok(Vec::new());
    }
    let mut list = run::command("ip");
    list.args([
        "netns",
        "exec",
        &layout.netns_name(),
        "nft",
        "list",
        "tables",
    ]);
    Ok(own_tables(&run::output(&mut list)?))
}

/// Tables of ours that are left, from lines such as `table inet vmlet`.
fn own_tables(list: &str) -> Vec<Leak> {
    let tables = list.lines().filter_map(|line| line.strip_prefix("table "));
    let is_ours = |table: &&str| table.split(' ').any(|name| name.starts_with(OWN_TABLES));
    let ours = tables.filter(is_ours);
    ours.map(|table| Leak::new("packet filter", table))
        .collect()
}

fn foreign_links(links: Vec<String>, kernel: &[String]) -> Vec<Leak> {
    let known = |name: &str| {
        name == "lo"
            || name == NODE_LINK
            || name == POD_BRIDGE
            || name.starts_with(PEER_PREFIX)
            || kernel.iter().any(|link| link == name)
    };
    links
        .into_iter()
        .filter(|name| !known(name))
        .map(|name| Leak::new("link", name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_packet_filters_are_leaks() {
        let found = own_tables("table ip nat\ntable netdev vmlet\ntable ip6 mangle\n");
        assert_eq!(found, [Leak::new("packet filter", "netdev vmlet")]);
    }

    #[test]
    fn only_added_links_are_leaks() {
        let links = ["lo", "node0", "cni0", "tunl0", "veth12ab"]
            .map(str::to_owned)
            .to_vec();
        let found = foreign_links(links, &["lo".to_owned(), "tunl0".to_owned()]);
        assert_eq!(found, [Leak::new("link", "veth12ab")]);
        assert_eq!(found[0].to_string(), "link veth12ab");
    }
}
