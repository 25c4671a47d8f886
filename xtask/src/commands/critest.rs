//! `critest`: the conformance suite of the Container Runtime Interface against a stack of its own.
//!
//! Invariant: `tests/critest/expected.tsv` states which specifications run and how each must end.
//! Failure: exit code 1 when one ends otherwise, for better or worse, when one did not run, and
//! when the stack leaked anything.

mod expected;

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde::Deserialize;

use self::expected::{Expected, Outcome};
use super::tools::{self, Tool};
use super::up::Build;
use super::{guest, setup};
use crate::stack::Session;
use crate::{run, workspace};

/// Runs critest and compares the results with the expected ones.
#[derive(Debug, clap::Args)]
pub(crate) struct Critest {
    /// Only specifications whose text contains this string.
    #[arg(long)]
    only: Option<String>,
    /// Use critest, the programs and the guest image without building them.
    #[arg(long)]
    no_build: bool,
}

/// What became of the suite.
#[derive(Debug)]
struct Tally {
    /// Specifications that ended as expected.
    passed: usize,
    /// Those that did not, and leaks.
    failed: usize,
}

/// One run of ginkgo, as far as we care.
#[derive(Debug, Deserialize)]
struct Suite {
    #[serde(rename = "SpecReports")]
    reports: Vec<Spec>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Spec {
    #[serde(default)]
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
    #[serde(default)]
    failure: Failure,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Failure {
    message: String,
}

impl Critest {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        if !self.no_build {
            if setup::ensure(false)? != ExitCode::SUCCESS {
                return Ok(ExitCode::FAILURE);
            }
            tools::ensure(&[Tool::Critest])?;
            guest::ensure()?;
            Build::DEVELOPMENT.programs()?;
        }
        let tally = suite(self.only.as_deref())?;
        println!(
            "critest: {} as expected, {} not",
            tally.passed, tally.failed
        );
        Ok(if tally.failed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

fn suite(only: Option<&str>) -> Result<Tally> {
    let table = workspace::root().join("tests/critest/expected.tsv");
    let text = fs::read_to_string(&table).with_context(|| format!("read {}", table.display()))?;
    let expected = Expected::parse(&text)?.only(only);
    let session = Session::up("critest")?;
    let specs = run_suite(&session, &expected);
    let down = session.down();
    let differences = expected.compare(&specs?);
    for difference in &differences {
        println!("critest: {difference}");
    }
    if let Err(error) = &down {
        println!("critest: {error:#}");
    }
    let failed = differences.len() + usize::from(down.is_err());
    Ok(Tally {
        passed: expected.len().saturating_sub(differences.len()),
        failed,
    })
}

fn run_suite(session: &Session, expected: &Expected) -> Result<Vec<(String, Outcome, String)>> {
    let images = workspace::target().join("critest-images.yaml");
    let report = workspace::target().join("critest.json");
    let image = session.image();
    fs::write(
        &images,
        format!("defaultTestContainerImage: {image}\nwebServerTestImage: {image}\n"),
    )?;

    let mut critest = session.command("critest");
    critest.arg("-runtime-endpoint").arg(format!(
        "unix://{}",
        session.layout().cri_socket().display()
    ));
    critest.arg("-test-images-file").arg(&images);
    critest
        .arg("-ginkgo.focus")
        .arg(expected.focus())
        .args(["-ginkgo.no-color", "-ginkgo.v=false"]);
    critest
        .arg("-ginkgo.json-report")
        .arg(&report)
        .current_dir(workspace::target());
    println!("critest: {} specifications", expected.len());
    // Its exit code knows nothing of expected failures; the report decides.
    let status = critest.status().with_context(|| run::describe(&critest))?;
    let text = fs::read_to_string(&report)
        .with_context(|| format!("critest ended with {status} and left no report"))?;
    fs::remove_file(&report).context("remove the report")?;
    outcomes(&text)
}

/// Full text, outcome and reason of each specification in ginkgo's report.
fn outcomes(report: &str) -> Result<Vec<(String, Outcome, String)>> {
    let suites: Vec<Suite> = serde_json::from_str(report).context("parse critest's report")?;
    let specs = suites.into_iter().flat_map(|suite| suite.reports);
    Ok(specs
        .filter(|spec| spec.leaf_node_type == "It")
        .map(|spec| {
            let mut words = spec.container_hierarchy_texts.unwrap_or_default();
            words.push(spec.leaf_node_text);
            (
                words.join(" "),
                Outcome::of_state(&spec.state),
                spec.failure.message,
            )
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_gives_the_full_text_and_the_outcome() {
        let report = r#"[{"SpecReports":[
            {"ContainerHierarchyTexts":["[k8s.io] A","b"],"LeafNodeType":"It","LeafNodeText":"c","State":"passed"},
            {"ContainerHierarchyTexts":null,"LeafNodeType":"BeforeSuite","LeafNodeText":"","State":"passed"},
            {"ContainerHierarchyTexts":["A"],"LeafNodeType":"It","LeafNodeText":"d","State":"failed",
             "Failure":{"Message":"timed out"}}]}]"#;
        let found = outcomes(report).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(
            found[0],
            ("[k8s.io] A b c".to_owned(), Outcome::Pass, String::new())
        );
        assert_eq!(
            found[1],
            ("A d".to_owned(), Outcome::Fail, "timed out".to_owned())
        );
    }
}
