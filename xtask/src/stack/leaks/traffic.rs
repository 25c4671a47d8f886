//! Traffic control on the links of the node: what plugins such as `bandwidth` set up for a pod.
//!
//! Invariant: a queueing discipline that the kernel gave a link by itself is no leak; it has the handle
//! `0:`. Those in the namespaces of pods end with these.
//! Failure: what `tc` says.

use anyhow::{Context, Result};
use serde::Deserialize;

use super::Leak;
use crate::run;
use crate::stack::Layout;

/// The handle of a discipline that the kernel gave a link by itself.
const OF_KERNEL: &str = "0:";
/// The discipline whose filters have their places by name.
const CLSACT: &str = "clsact";

/// A queueing discipline, as `tc` prints it.
#[derive(Debug, Deserialize)]
struct Qdisc {
    kind: String,
    handle: String,
    dev: String,
}

/// A filter, which `tc` prints once more for each of its rules.
#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Filter {
    kind: String,
    protocol: String,
    pref: u64,
}

/// Disciplines and filters in the node's namespace.
pub(super) fn find(layout: &Layout) -> Result<Vec<Leak>> {
    if !layout.netns_path().exists() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for qdisc in configured(&shown(layout, &["qdisc", "show"])?)? {
        let Qdisc { kind, handle, dev } = &qdisc;
        found.push(Leak::new("qdisc", format!("{kind} {handle} on {dev}")));
        for place in qdisc.places() {
            let arguments = [&["filter", "show", "dev", dev.as_str()], place.as_slice()].concat();
            let filters = filters(&shown(layout, &arguments)?)?;
            found.extend(filters.iter().map(|filter| {
                let Filter {
                    kind,
                    protocol,
                    pref,
                } = filter;
                Leak::new("filter", format!("{kind} {pref} for {protocol} on {dev}"))
            }));
        }
    }
    Ok(found)
}

impl Qdisc {
    /// Where it has filters, in the words of `tc`.
    fn places(&self) -> Vec<Vec<&str>> {
        if self.kind == CLSACT {
            return vec![vec!["ingress"], vec!["egress"]];
        }
        vec![vec!["parent", &self.handle]]
    }
}

fn shown(layout: &Layout, arguments: &[&str]) -> Result<String> {
    let mut tc = run::command("tc");
    tc.args(["-netns", &layout.netns_name(), "-json"]);
    run::output(tc.args(arguments))
}

fn configured(text: &str) -> Result<Vec<Qdisc>> {
    let mut all: Vec<Qdisc> = serde_json::from_str(text).context("parse the disciplines of tc")?;
    all.retain(|qdisc| qdisc.handle != OF_KERNEL);
    Ok(all)
}

fn filters(text: &str) -> Result<Vec<Filter>> {
    // Of a discipline that takes no filters it prints nothing at all.
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let mut all: Vec<Filter> = serde_json::from_str(text).context("parse the filters of tc")?;
    all.dedup();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_disciplines_that_were_configured_are_leaks() {
        let text = r#"[{"kind":"noqueue","handle":"0:","dev":"node0","root":true,"options":{}},
            {"kind":"tbf","handle":"8001:","dev":"node0","root":true,"options":{}},
            {"kind":"ingress","handle":"ffff:","dev":"cni0","parent":"ffff:fff1","options":{}}]"#;
        let found = configured(text).unwrap();
        let found: Vec<_> = found.iter().map(|qdisc| qdisc.kind.as_str()).collect();
        assert_eq!(found, ["tbf", "ingress"]);
        assert!(configured("no list").is_err());
    }

    #[test]
    fn a_filter_is_named_once_for_all_its_rules() {
        let text = r#"[{"protocol":"all","pref":49152,"kind":"u32","chain":0},
            {"protocol":"all","pref":49152,"kind":"u32","chain":0,"options":{"fh":"800:"}},
            {"protocol":"ip","pref":2,"kind":"flower","chain":0}]"#;
        let found = filters(text).unwrap();
        let found: Vec<_> = found.iter().map(|filter| filter.pref).collect();
        assert_eq!(found, [49152, 2]);
        assert_eq!(filters("").unwrap(), []);
    }
}
