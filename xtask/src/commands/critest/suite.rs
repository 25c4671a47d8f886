//! critest itself: which specifications it has, and how those of one group end.
//!
//! Invariant: the report decides; critest's exit code does not count, because it knows nothing of
//! expected failures.
//! Failure: critest cannot be started or leaves no report.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::expected::Expected;
use super::report::{self, Spec};
use crate::stack::Session;
use crate::{run, workspace};

/// Every specification that this critest has, in no particular order; nothing is executed.
pub(super) fn all() -> Result<Vec<Spec>> {
    let mut critest = run::command(workspace::tools_bin().join("critest"));
    critest.arg("-ginkgo.dry-run").stdout(Stdio::null());
    reported(critest, "all")
}

/// Runs the specifications of the table `lines`, which are of one group, against a stack; `handler`
/// is the runtime handler of each pod.
pub(super) fn group(
    session: &Session,
    handler: Option<&str>,
    group: &str,
    lines: &Expected,
) -> Result<Vec<Spec>> {
    let images = folder()?.join("images.yaml");
    let image = session.image();
    fs::write(
        &images,
        format!("defaultTestContainerImage: {image}\nwebServerTestImage: {image}\n"),
    )
    .with_context(|| format!("write {}", images.display()))?;

    let mut critest = session.command("critest");
    critest.arg("-runtime-endpoint").arg(format!(
        "unix://{}",
        session.layout().cri_socket().display()
    ));
    critest.arg("-test-images-file").arg(&images);
    if let Some(handler) = handler {
        critest.args(["-runtime-handler", handler]);
    }
    critest.arg("-ginkgo.focus").arg(lines.focus());
    let mut specs = reported(critest, group)?;
    // All others are in the report as skipped.
    specs.retain(|spec| lines.contains(&spec.text));
    Ok(specs)
}

/// Runs critest and reads its report, which stays in `target/critest/NAME.json`.
fn reported(mut critest: Command, name: &str) -> Result<Vec<Spec>> {
    let folder = folder()?;
    let report = folder.join(format!("{}.json", name.replace(' ', "-")));
    if report.exists() {
        fs::remove_file(&report).with_context(|| format!("remove {}", report.display()))?;
    }
    critest.args(["-ginkgo.no-color", "-ginkgo.v=false"]);
    critest.arg("-ginkgo.json-report").arg(&report);
    let status = critest
        .current_dir(&folder)
        .status()
        .with_context(|| run::describe(&critest))?;
    let text = fs::read_to_string(&report)
        .with_context(|| format!("critest ended with {status} and left no report"))?;
    report::parse(&text)
}

fn folder() -> Result<PathBuf> {
    let folder = workspace::target().join("critest");
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    Ok(folder)
}
