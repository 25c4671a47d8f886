//! Findings as text.
//!
//! Invariant: one line states what, a second, where there is one, what to do; the last line counts.
//! Failure: none.

use super::{Finding, Level};

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
    let (ok, warn, fail) = (count(Level::Ok), count(Level::Warn), count(Level::Fail));
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
