//! `doctor`: checks whether this node can run VM pods, and prints the remedy for each problem.
//!
//! Gathers facts, from the daemon and from the node, and judges them apart from gathering.
//!
//! Invariant: every finding has a level; every one that is not ok states what to do.
//! Failure: exit code 1 when a check fails, 2 when nothing could be checked. A daemon that is not
//! there is a finding.

mod apparmor;
mod checks;
mod facts;
mod hardening;
mod info;
mod kernel;
mod report;

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use crate::context::Endpoint;
use crate::table::printable;

/// Output format of the findings.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print facts and findings as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Warn,
    Fail,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Finding {
    check: &'static str,
    level: Level,
    what: String,
    /// What to do; nothing when all is well.
    #[serde(rename = "do")]
    advice: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, what: impl Into<String>) -> Self {
        Self {
            check,
            level: Level::Ok,
            what: printable(&what.into()),
            advice: None,
        }
    }

    fn warn(check: &'static str, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::bad(check, Level::Warn, &what.into(), &advice.into())
    }

    fn fail(check: &'static str, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::bad(check, Level::Fail, &what.into(), &advice.into())
    }

    fn bad(check: &'static str, level: Level, what: &str, advice: &str) -> Self {
        Self {
            check,
            level,
            what: printable(what),
            advice: Some(printable(advice)),
        }
    }
}

/// Whether something is to be repaired before machines can run.
fn is_failed(findings: &[Finding]) -> bool {
    findings.iter().any(|f| f.level == Level::Fail)
}

/// Exit code when nothing could be checked.
const NOT_CHECKED: u8 = 2;

pub(crate) async fn run(endpoint: &Endpoint, args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let daemon = facts::daemon(endpoint).await;
    let gathered = tokio::task::spawn_blocking(|| facts::node(daemon)).await;
    let facts = match gathered.context("gather facts") {
        Ok(facts) => facts,
        Err(error) => {
            eprintln!("error: {error:#}");
            return Ok(ExitCode::from(NOT_CHECKED));
        }
    };
    let findings = checks::all(&facts);
    let report = if args.json {
        report::json(&facts, &findings)?
    } else {
        report::text(&findings)
    };
    super::print(&report)?;
    Ok(if is_failed(&findings) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}
