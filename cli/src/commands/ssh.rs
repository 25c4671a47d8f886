//! `ssh`: logs in to the guest of a virtual machine with the ssh of this computer.
//!
//! Invariant: a host key is remembered for the machine, not for its address, which another machine
//! may have later.
//! Failure: a machine that has no address yet, or an ssh that is not installed, is an error that
//! states what to do.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::Context;
use clap::Args;
use crds::vm::PrintableStatus as Word;
use crds::{VirtualMachine, names};
use kube::ResourceExt;

use crate::cluster::ClusterArgs;

/// Machine to log in to, and the user. Arguments after the name are passed to ssh.
#[derive(Debug, Args)]
pub(crate) struct SshArgs {
    /// Name of the machine, and user of its guest [default user: the default of ssh].
    #[arg(value_name = "[USER@]NAME")]
    machine: String,
    /// Options for ssh, and a command to run in the guest.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENTS"
    )]
    arguments: Vec<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) async fn run(args: &SshArgs) -> anyhow::Result<ExitCode> {
    let (user, name) = match args.machine.rsplit_once('@') {
        Some((user, name)) => (Some(user), name),
        None => (None, args.machine.as_str()),
    };
    let cluster = args.cluster.connect().await?;
    let found = cluster.find(name).await?;
    let arguments = arguments(&found.vm, user, &args.arguments)?;
    let error = Command::new("ssh").args(arguments).exec();
    Err(error).context("run ssh, which has to be installed on this computer")
}

/// The arguments of ssh.
fn arguments(
    vm: &VirtualMachine,
    user: Option<&str>,
    more: &[String],
) -> anyhow::Result<Vec<String>> {
    let status = vm.status.clone().unwrap_or_default();
    let name = vm.name_any();
    if status.printable_status != Some(Word::Running) {
        let state = status.printable_status.map(|word| format!("{word:?}"));
        let state = state.unwrap_or_else(|| "new".to_owned());
        anyhow::bail!("{name} does not run, it is {state}: `vmletctl status {name}` says more");
    }
    let network = status.network.unwrap_or_default();
    let address = network.primary_ip4.or(network.primary_ip6);
    let address = address.with_context(|| {
        format!("{name} has no address yet: `vmletctl status {name}` says what its guest is at")
    })?;
    let target = match user {
        Some(user) => format!("{user}@{address}"),
        None => address,
    };
    let uid = vm.uid().unwrap_or_default();
    let alias = format!("HostKeyAlias={}{uid}", names::PREFIX);
    let mut arguments = vec!["-o".to_owned(), alias, target];
    arguments.extend_from_slice(more);
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn machine(status: impl Into<Value>) -> VirtualMachine {
        let status: Value = status.into();
        serde_json::from_value(json!({
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachine",
            "metadata": {"name": "web", "uid": "u1"}, "spec": {"running": true}, "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn the_host_key_is_that_of_the_machine() {
        let network = json!({"primaryIP4": "10.88.0.7", "primaryIP6": "fd00::7"});
        let vm = machine(json!({"printableStatus": "Running", "network": network}));
        let more = ["-v".to_owned(), "uptime".to_owned()];
        assert_eq!(
            arguments(&vm, Some("root"), &more).unwrap(),
            [
                "-o",
                "HostKeyAlias=vmlet.dev/u1",
                "root@10.88.0.7",
                "-v",
                "uptime"
            ]
        );
        let network = json!({"primaryIP6": "fd00::7"});
        let vm = machine(json!({"printableStatus": "Running", "network": network}));
        assert_eq!(arguments(&vm, None, &[]).unwrap()[2], "fd00::7");
    }

    #[test]
    fn an_unreachable_machine_reports_the_reason() {
        let refused = |status: Value| {
            let refused = arguments(&machine(status), None, &[]).unwrap_err();
            refused.to_string()
        };
        let stopped = refused(json!({"printableStatus": "Stopped"}));
        assert!(stopped.contains("does not run, it is Stopped"), "{stopped}");
        let silent = refused(json!({"printableStatus": "Running"}));
        assert!(silent.contains("no address yet"), "{silent}");
        assert!(refused(json!({})).contains("it is new"));
    }
}
