//! Findings as text, and as JSON with what the daemon knows of the node.
//!
//! Invariant: in the text one line states what, a second, where there is one, what to do; the last
//! line counts. Within a version of the JSON fields are added, never changed
//! (`docs/vmletctl.md`).
//! Failure: none.

use serde::Serialize;
use serde_json::Value;

use super::facts::{Daemon, Facts};
use super::info::Part;
use super::{Finding, Level, is_failed};

/// The version of the JSON.
const API_VERSION: &str = "doctor.vmlet.dev/v1";
const KIND: &str = "NodeReport";

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeReport<'a> {
    api_version: &'static str,
    kind: &'static str,
    /// No finding fails.
    passed: bool,
    /// `null` without a daemon that says so.
    node: Value,
    findings: &'a [Finding],
}

pub(super) fn json(facts: &Facts, findings: &[Finding]) -> serde_json::Result<String> {
    let report = NodeReport {
        api_version: API_VERSION,
        kind: KIND,
        passed: !is_failed(findings),
        node: node(&facts.daemon),
        findings,
    };
    Ok(serde_json::to_string_pretty(&report)? + "\n")
}

/// What the daemon says of its node, with accelerator and versions beside it.
fn node(daemon: &Daemon) -> Value {
    let Daemon::Answers(answers) = daemon else {
        return Value::Null;
    };
    let info = &answers.info;
    let Value::Object(mut node) = info.node.clone() else {
        return Value::Null;
    };
    let version = |part: &Part| match part {
        Part::Works(version) if !version.is_empty() => Some(version.clone()),
        Part::Works(_) | Part::Broken(_) | Part::Unknown => None,
    };
    let more = [
        ("accelerator", info.accelerator.clone()),
        ("libvirtVersion", version(&info.libvirt)),
        ("qemuVersion", version(&info.qemu)),
    ];
    node.extend(more.map(|(name, value)| (name.to_owned(), value.into())));
    Value::Object(node)
}

pub(super) fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let level = match finding.level {
            Level::Ok => "ok  ",
            Level::Warn => "WARN",
            Level::Fail => "FAIL",
        };
        text.push_str(&format!(
            "{level}  {:<12} {}\n",
            finding.check, finding.what
        ));
        if let Some(advice) = &finding.advice {
            text.push_str(&format!("{:18} -> {advice}\n", ""));
        }
    }
    let count = |level| findings.iter().filter(|f| f.level == level).count();
    let ok = count(Level::Ok);
    let warn = count(Level::Warn);
    let fail = count(Level::Fail);
    text.push_str(&format!("{ok} ok, {warn} to look at, {fail} to repair\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finding_has_a_line_and_its_advice_another() {
        let findings = [
            Finding::ok("tun", "taps can be made"),
            Finding::warn("kvm", "no /dev/kvm", "load the module"),
            Finding::fail("daemon", "not there\u{1b}[2J", "start it"),
        ];
        insta::assert_snapshot!(text(&findings), @"
        ok    tun          taps can be made
        WARN  kvm          no /dev/kvm
                           -> load the module
        FAIL  daemon       not there�[2J
                           -> start it
        1 ok, 1 to look at, 1 to repair
        ");
    }
}
