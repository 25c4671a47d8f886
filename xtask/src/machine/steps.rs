//! Steps: commands of the shell, one after the other, as root in the machine.
//!
//! Invariant: the first step that fails is the last one; its exit code is that of the run. What
//! each said is in `run/steps`, on both streams apart.
//! Failure: a step past its deadline is an error, and so is one whose output the guest agent cuts.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::agent::{Agent, Ended};

/// One step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Step {
    name: String,
    script: String,
}

impl Step {
    /// The commands of the command line, numbered.
    pub(crate) fn given(commands: &[String]) -> Vec<Self> {
        let numbered = commands.iter().enumerate();
        numbered
            .map(|(index, command)| Self {
                name: format!("{:02}", index + 1),
                script: command.clone(),
            })
            .collect()
    }

    /// The files of a folder, in the order of their names.
    pub(crate) fn of_folder(folder: &Path) -> Result<Vec<Self>> {
        let entries =
            fs::read_dir(folder).with_context(|| format!("failed to list {}", folder.display()))?;
        let mut files = entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<Vec<_>, _>>()
            .with_context(|| format!("failed to list {}", folder.display()))?;
        files.retain(|file| file.is_file());
        files.sort();
        ensure!(!files.is_empty(), "{} has no steps", folder.display());
        files.iter().map(|file| Self::of_file(file)).collect()
    }

    fn of_file(file: &Path) -> Result<Self> {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let script = fs::read_to_string(file)
            .with_context(|| format!("failed to read {}", file.display()))?;
        Ok(Self {
            name: name.into_owned(),
            script,
        })
    }
}

/// Runs the steps and returns the exit code of the last one.
pub(crate) fn run(agent: &mut Agent, steps: &[Step], run: &Path, deadline: Duration) -> Result<u8> {
    let logs = run.join("steps");
    fs::create_dir_all(&logs).with_context(|| format!("failed to create {}", logs.display()))?;
    for step in steps {
        let started = Instant::now();
        println!("machine: step {}", step.name);
        let ended = agent
            .run(&step.script, deadline)
            .with_context(|| format!("step {}", step.name))?;
        record(&logs, step, &ended)?;
        let seconds = started.elapsed().as_secs();
        println!(
            "machine: step {} ended with {} after {seconds} s",
            step.name, ended.code
        );
        if ended.code != 0 {
            return Ok(ended.code);
        }
    }
    Ok(0)
}

fn record(logs: &Path, step: &Step, ended: &Ended) -> Result<()> {
    for (stream, text) in [("stdout", &ended.stdout), ("stderr", &ended.stderr)] {
        let log = logs.join(format!("{}.{stream}", step.name));
        fs::write(&log, text).with_context(|| format!("failed to write {}", log.display()))?;
    }
    // A reader that is gone, such as `head`, changes nothing.
    let _ = std::io::stdout().write_all(&ended.stdout);
    let _ = std::io::stderr().write_all(&ended.stderr);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_a_folder_have_the_order_of_their_names() {
        let dir = tempfile::tempdir().unwrap();
        for (name, script) in [("20-second", "b"), ("10-first", "a")] {
            fs::write(dir.path().join(name), script).unwrap();
        }
        fs::create_dir(dir.path().join("00-folder")).unwrap();
        let steps = Step::of_folder(dir.path()).unwrap();
        let names: Vec<_> = steps.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(names, ["10-first", "20-second"]);
        assert_eq!(steps[1].script, "b");
    }

    #[test]
    fn a_folder_without_steps_is_a_mistake() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Step::of_folder(dir.path()).is_err());
    }

    #[test]
    fn commands_are_numbered() {
        let steps = Step::given(&["true".to_owned(), "false".to_owned()]);
        assert_eq!(steps[1].name, "02");
        assert_eq!(steps[1].script, "false");
    }
}
