//! `ssh`: logs in to the guest of a virtual machine with the ssh of this computer, through the API server.
//!
//! Invariant: the command begins with its first word, and `--` behind the name begins what is for ssh; either is
//! passed on as it is, to the end of the line. Our own flags stand before it.
//! Failure: a machine that does not run, or an ssh that is not installed, is an error that states what to do.

use std::process::ExitCode;

use anyhow::ensure;
use clap::Args;

use super::openssh::{Guest, become_program, login};
use crate::cluster::ClusterArgs;

/// Machine to log in to, and the user.
#[derive(Debug, Args)]
pub(crate) struct SshArgs {
    /// Name of the machine or VM pod, and user of its guest [default user: the default of ssh].
    #[arg(value_name = "[USER@]NAME")]
    machine: String,
    /// Command to run in the guest, with all flags behind its first word; without one, ssh starts a shell. Behind --
    /// options for ssh may stand before it, such as -- -L 5432:localhost:5432 -N.
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    command: Vec<String>,
    /// An option for ssh that has precedence over those with which it reaches the machine, such as
    /// --local-ssh-opts=-oUserKnownHostsFile=/dev/null; may be repeated.
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    local_ssh_opts: Vec<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) async fn run(args: &SshArgs) -> anyhow::Result<ExitCode> {
    let login = login(&args.machine);
    let has_slash = login.user.is_some_and(|user| user.contains('/'));
    ensure!(
        !has_slash,
        "a user has no slash: the kind stands before the name, as in root@vm/web"
    );
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
    arguments.push(guest.host());
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
            given("ssh web --local-ssh-opts -i --local-ssh-opts=key id -v"),
            "-i key OURS web.team.vmlet id -v"
        );
    }

    #[test]
    fn flags_of_a_command_are_not_ours() {
        for command in [
            "kubectl -n prod delete pod x",
            "systemctl --user stop x --context y --help",
            "kubectl exec x -- ls --cluster c",
            "-- -t kubectl -n prod get pods -- -n x",
        ] {
            let line = format!("ssh web -n team {command}");
            let passed = command.strip_prefix("-- ").unwrap_or(command);
            assert_eq!(given(&line), format!("OURS web.team.vmlet {passed}"));
            let args = Line::try_parse_from(line.split(' ')).unwrap().args;
            assert_eq!(args.cluster.namespace.as_deref(), Some("team"));
            assert_eq!(args.cluster.context, None);
        }
        assert!(Line::try_parse_from(["ssh", "web", "-L", "1:x:2"]).is_err());
    }
}
