//! ginkgo's report of the suite.
//!
//! Invariant: only specifications count, not what surrounds them; those that critest registers on
//! some hosts alone are left out.
//! Failure: a report that is not ginkgo's.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::expected::Outcome;

/// What stands in front of the name of each group.
const PREFIX: &str = "[k8s.io] ";
/// The group that exists only on hosts with SELinux. Nothing in it is for a VM.
const SELINUX: &str = "SELinux";

/// One specification and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spec {
    /// The name of its top-level group.
    pub(super) group: String,
    /// Its full text.
    pub(super) text: String,
    /// How it ended; in a run without execution this means nothing.
    pub(super) outcome: Outcome,
    /// How long it took.
    pub(super) duration: Duration,
    /// Why it failed or was skipped.
    pub(super) message: String,
}

/// One run of ginkgo, as far as we care.
#[derive(Debug, Deserialize)]
struct Suite {
    #[serde(rename = "SpecReports")]
    reports: Vec<Report>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Report {
    #[serde(default)]
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
    /// Nanoseconds.
    #[serde(default)]
    run_time: u64,
    #[serde(default)]
    failure: Failure,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Failure {
    message: String,
}

/// Reads a report.
pub(super) fn parse(report: &str) -> Result<Vec<Spec>> {
    let suites: Vec<Suite> = serde_json::from_str(report).context("parse critest's report")?;
    let reports = suites.into_iter().flat_map(|suite| suite.reports);
    let specs = reports.filter(|report| report.leaf_node_type == "It");
    Ok(specs
        .map(Spec::from)
        .filter(|spec| spec.group != SELINUX)
        .collect())
}

impl From<Report> for Spec {
    fn from(report: Report) -> Self {
        let mut words = report.container_hierarchy_texts.unwrap_or_default();
        let group = words.first().map(String::as_str).unwrap_or_default();
        let group = group.strip_prefix(PREFIX).unwrap_or(group).to_owned();
        words.push(report.leaf_node_text);
        Self {
            group,
            text: words.join(" "),
            outcome: Outcome::of_state(&report.state),
            duration: Duration::from_nanos(report.run_time),
            message: report.failure.message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_gives_group_full_text_and_outcome() {
        let report = r#"[{"SpecReports":[
            {"ContainerHierarchyTexts":["[k8s.io] A","b"],"LeafNodeType":"It","LeafNodeText":"c","State":"passed"},
            {"ContainerHierarchyTexts":null,"LeafNodeType":"BeforeSuite","LeafNodeText":"","State":"passed"},
            {"ContainerHierarchyTexts":["[k8s.io] SELinux"],"LeafNodeType":"It","LeafNodeText":"e","State":"passed"},
            {"ContainerHierarchyTexts":["A"],"LeafNodeType":"It","LeafNodeText":"d","State":"failed","RunTime":7,
             "Failure":{"Message":"timed out"}}]}]"#;
        let spec = |text: &str, outcome, nanos, message: &str| Spec {
            group: "A".to_owned(),
            text: text.to_owned(),
            outcome,
            duration: Duration::from_nanos(nanos),
            message: message.to_owned(),
        };
        assert_eq!(
            parse(report).unwrap(),
            [
                spec("[k8s.io] A b c", Outcome::Pass, 0, ""),
                spec("A d", Outcome::Fail, 7, "timed out")
            ]
        );
        assert!(parse("{}").is_err());
    }
}
