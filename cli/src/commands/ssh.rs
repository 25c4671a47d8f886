//! `ssh`: logs in to the guest of a virtual machine with the ssh of this computer, through the API server.
//!
//! Invariant: what stands behind the name is for the guest or for ssh, and is passed on as it is.
//! Failure: a machine that does not run, or an ssh that is not installed, is an error that states what to do.

use std::process::ExitCode;

use clap::Args;

use super::openssh::{Guest, become_program, login};
use crate::cluster::ClusterArgs;

/// Machine to log in to, and the user.
#[derive(Debug, Args)]
pub(crate) struct SshArgs {
    /// Name of the machine or VM pod, and user of its guest [default user: the default of ssh].
    #[arg(value_name = "[USER@]NAME")]
    machine: String,
    /// Command to run in the guest. Without one, ssh starts a shell.
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
    /// Options for ssh and a command, such as -- -L 5432:localhost:5432 -N.
    #[arg(last = true, value_name = "ARGUMENTS")]
    arguments: Vec<String>,
    /// An option for ssh that has precedence over those with which it reaches the machine, such as
    /// --local-ssh-opts=-oUserKnownHostsFile=/dev/null; may be repeated.
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    local_ssh_opts: Vec<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) async fn run(args: &SshArgs) -> anyhow::Result<ExitCode> {
    let login = login(&args.machine);
    let guest = Guest::new(&args.cluster, login.name).await?;
    guest.ensure_runs()?;
    Err(become_program("ssh", &arguments(args, &guest, login.user)))
}

/// The arguments of ssh, for which the first one of two that contradict each other counts.
fn arguments(args: &SshArgs, guest: &Guest, user: Option<&str>) -> Vec<String> {
    let mut arguments = args.local_ssh_opts.clone();
    arguments.extend(guest.options());
    if let Some(user) = user {
        arguments.extend(["-l".to_owned(), user.to_owned()]);
    }
    arguments.push(guest.host.clone());
    arguments.extend_from_slice(&args.arguments);
    arguments.extend_from_slice(&args.command);
    arguments
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: SshArgs,
    }

    fn given(line: &str) -> String {
        let args = Line::try_parse_from(line.split(' ')).unwrap().args;
        let user = login(&args.machine).user;
        let guest = Guest::for_tests("web");
        let ours = guest.options().join(" ");
        arguments(&args, &guest, user)
            .join(" ")
            .replace(&ours, "OURS")
    }

    #[test]
    fn what_stands_behind_the_name_is_for_ssh_and_the_guest() {
        assert_eq!(given("ssh web"), "OURS web.team.vmlet");
        assert_eq!(
            given("ssh root@web -n team uptime"),
            "OURS -l root web.team.vmlet uptime"
        );
        assert_eq!(
            given("ssh web -- -v -n uptime"),
            "OURS web.team.vmlet -v -n uptime"
        );
        assert_eq!(
            given("ssh web --local-ssh-opts -i --local-ssh-opts=key id -- -v"),
            "-i key OURS web.team.vmlet -v id"
        );
    }
}
