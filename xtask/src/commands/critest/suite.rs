//! critest itself: which specifications it has, and how one of them ends.
//!
//! Invariant: the report decides; critest's exit code does not count. Each specification has a
//! process and a time limit of its own, so that one that does not end leaves the others alone.
//! Failure: critest cannot be started or leaves no report.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::report::{self, Spec};
use crate::stack::Session;
use crate::{run, workspace};

/// What a specification may take. The longest wait a minute for a state, once or twice.
const LIMIT: &str = "3m";

/// critest against a running stack.
#[derive(Debug)]
pub(super) struct Suite<'a> {
    session: &'a Session,
    handler: Option<&'a str>,
    images: PathBuf,
}

/// Every specification that this critest has, in no particular order; nothing is executed.
pub(super) fn all() -> Result<Vec<Spec>> {
    let mut critest = run::command(workspace::tools_bin().join("critest"));
    critest.arg("-ginkgo.dry-run");
    reported(critest).map(|(specs, _)| specs)
}

impl<'a> Suite<'a> {
    /// A suite for pods that have the runtime handler `handler`.
    pub(super) fn new(session: &'a Session, handler: Option<&'a str>) -> Result<Self> {
        let images = folder()?.join("images.yaml");
        let image = session.image();
        fs::write(
            &images,
            format!("defaultTestContainerImage: {image}\nwebServerTestImage: {image}\n"),
        )
        .with_context(|| format!("write {}", images.display()))?;
        Ok(Self {
            session,
            handler,
            images,
        })
    }

    /// Runs the specification with this full text, if there is one; also returns what critest
    /// prints.
    pub(super) fn run(&self, text: &str) -> Result<(Option<Spec>, String)> {
        // critest leaves shared memory segments behind. They go with their namespace.
        let mut critest = self.session.command("unshare");
        critest.args(["--ipc", "critest"]);
        critest.arg("-runtime-endpoint").arg(format!(
            "unix://{}",
            self.session.layout().cri_socket().display()
        ));
        critest.arg("-test-images-file").arg(&self.images);
        if let Some(handler) = self.handler {
            critest.args(["-runtime-handler", handler]);
        }
        critest.args(["-ginkgo.timeout", LIMIT, "-ginkgo.focus", &focus(text)]);
        let (specs, output) = reported(critest)?;
        // All others are in the report as skipped.
        Ok((specs.into_iter().find(|spec| spec.text == text), output))
    }
}

/// Runs critest and reads its report and its output.
fn reported(mut critest: Command) -> Result<(Vec<Spec>, String)> {
    let folder = folder()?;
    let report = folder.join("report.json");
    if report.exists() {
        fs::remove_file(&report).with_context(|| format!("remove {}", report.display()))?;
    }
    critest.args(["-ginkgo.no-color", "-ginkgo.v=false"]);
    critest.arg("-ginkgo.json-report").arg(&report);
    let output = critest
        .current_dir(&folder)
        .output()
        .with_context(|| run::describe(&critest))?;
    let mut printed = String::from_utf8_lossy(&output.stdout).into_owned();
    printed.push_str(&String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(&report).with_context(|| {
        let status = output.status;
        format!("critest ended with {status} and left no report: {printed}")
    })?;
    Ok((report::parse(&text)?, printed))
}

fn folder() -> Result<PathBuf> {
    let folder = workspace::target().join("critest");
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    Ok(folder)
}

/// The regular expression that selects exactly this; ginkgo puts the name of the suite in front of
/// a text.
fn focus(text: &str) -> String {
    let special = |character| r"\.+*?()|[]{}^$".contains(character);
    let quoted = text
        .chars()
        .flat_map(|c| special(c).then_some('\\').into_iter().chain([c]));
    format!(" {}$", quoted.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_focus_selects_the_text_literally() {
        assert_eq!(focus("[k8s.io] a (b|c)."), r" \[k8s\.io\] a \(b\|c\)\.$");
    }
}
