//! `machine`: boots a machine as users have it and runs commands in it.
//!
//! Invariant: the exit code is that of the first step that fails; a run leaves the journal and the
//! logs of the machine in `target/machine/OS/run`.
//! Failure: 1 and the step of ours that failed; see `machine`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use crate::machine::{self, Os, Stay, Step};

/// Boots a machine as users have it (systemd, cgroup v2, AppArmor, containerd, libvirt) in QEMU.
#[derive(Debug, clap::Args)]
pub(crate) struct Machine {
    /// The distribution in it.
    #[arg(long, global = true, value_enum, default_value_t = Os::Debian12)]
    os: Os,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Builds the image, boots it once and takes the snapshot from which runs start. Ends a machine
    /// that is up.
    Build,
    /// Runs steps as root; the first that fails is the last, and its exit code that of the run.
    Run(Run),
    /// Writes what kubeadm needs to make a cluster in the machine to a folder for --files.
    Kubeadm(Kubeadm),
    /// Opens a shell of root on this terminal; Ctrl-] leaves it.
    Shell(Shell),
    /// Ends a machine that a run or a shell kept.
    Down,
}

#[derive(Debug, clap::Args)]
struct Run {
    /// A folder with a file of shell commands for each step, run in the order of their names.
    #[arg(long, value_name = "DIR", required_unless_present = "commands")]
    steps: Option<PathBuf>,
    /// Shell commands, a step each, after those of --steps.
    #[arg(value_name = "STEP")]
    commands: Vec<String>,
    /// How many seconds a step may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    deadline: u64,
    #[command(flatten)]
    start: Start,
}

#[derive(Debug, clap::Args)]
struct Kubeadm {
    /// The folder, in which `kubernetes` is created or replaced.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    #[command(flatten)]
    cluster: machine::Cluster,
}

#[derive(Debug, clap::Args)]
struct Shell {
    #[command(flatten)]
    start: Start,
}

#[derive(Debug, clap::Args)]
struct Start {
    /// A folder whose content the machine has, read-only, at /mnt/files ($FILES in steps).
    #[arg(long, value_name = "DIR")]
    files: Option<PathBuf>,
    /// Leaves the machine up for later runs and shells; `down` ends it.
    #[arg(long)]
    keep: bool,
}

impl Machine {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        match &self.action {
            Action::Build => machine::build(self.os)?,
            Action::Run(run) => return run.run(self.os),
            Action::Kubeadm(kubeadm) => {
                kubeadm.cluster.write(kubeadm.folder.join("kubernetes"))?;
            }
            Action::Shell(shell) => {
                let machine = shell.start.machine(self.os)?;
                machine::shell(&self.os.run_folder())?;
                machine.leave()?;
            }
            Action::Down => {
                let state = if machine::down(self.os)? {
                    "has ended"
                } else {
                    "was not up"
                };
                println!("machine: the {} {state}", self.os.name());
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Run {
    fn run(&self, os: Os) -> Result<ExitCode> {
        let mut steps = match &self.steps {
            Some(folder) => Step::of_folder(folder)?,
            None => Vec::new(),
        };
        steps.extend(Step::given(&self.commands));
        let mut machine = self.start.machine(os)?;
        let deadline = Duration::from_secs(self.deadline);
        let ended = machine.steps(&steps, deadline);
        let collected = machine.collect();
        let left = machine.leave();
        let code = ended?;
        collected.and(left)?;
        println!("machine: results are in {}", os.run_folder().display());
        Ok(ExitCode::from(code))
    }
}

impl Start {
    fn machine(&self, os: Os) -> Result<machine::Machine> {
        let stay = if self.keep { Stay::Keep } else { Stay::End };
        machine::Machine::take(os, self.files.as_deref(), stay)
    }
}
