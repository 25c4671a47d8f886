//! `node console`: the serial console of a pod's VM, from the daemon of this node.
//!
//! Invariant: the user's terminal is as before when the command ends.
//! Failure: an error when the VM is not running, or when its console is not offered.

use std::io::stdin;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use cri_proto::v1::ContainerState;
use serde::Deserialize;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::console::{self, End, Escape, Input};
use crate::context::Endpoint;
use crate::interrupt::Interrupts;
use crate::pods::{self, PodArg};
use crate::terminal::RawMode;

const CONNECT: Duration = Duration::from_secs(5);

/// Pod whose console to open.
#[derive(Debug, Args)]
pub(crate) struct ConsoleArgs {
    #[command(flatten)]
    pod: PodArg,
    /// Only show the output of the guest, until the console closes.
    #[arg(long)]
    no_input: bool,
    /// Key that leaves: ^ and a letter, one character, or none.
    #[arg(
        long,
        value_name = "KEY",
        default_value = "^]",
        conflicts_with = "no_input"
    )]
    escape: Escape,
}

/// The part of a container's verbose status that matters here.
#[derive(Deserialize)]
struct Info {
    vm: Vm,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Vm {
    console_socket: String,
}

pub(crate) async fn run(endpoint: &Endpoint, args: &ConsoleArgs) -> anyhow::Result<ExitCode> {
    let connected = endpoint.connect().await;
    let runtime = connected.context(
        "this command reaches pods of this node only (in a cluster: vmletctl console NAME)",
    )?;
    let pod = pods::find(&runtime, &args.pod).await?;
    let container = match pod.container() {
        Some(container) if container.state() == ContainerState::ContainerRunning => container,
        _ => bail!(
            "the VM of pod {} is not running (it is {}); vmletctl node logs shows what it said",
            pod.name(),
            pod.state()
        ),
    };
    let info = runtime.container_status(&container.id, true).await?.info;
    let socket = console_socket(info.get("info").map(String::as_str))?;
    let connected = timeout(CONNECT, UnixStream::connect(&socket)).await;
    let stream = connected
        .with_context(|| format!("console {socket} does not answer within {CONNECT:?}"))?
        .with_context(|| format!("connect to console {socket}"))?;

    let mut interrupts = Interrupts::listen()?;
    let raw = if args.no_input {
        None
    } else {
        let raw = RawMode::enter(stdin().as_fd()).context("set the terminal to raw mode")?;
        raw.inspect(|_| eprint!("connected to {}{}\r\n", pod.name(), args.escape.hint()))
    };
    let mut input = match (args.no_input, &raw) {
        (true, _) => Input::None,
        (false, Some(_)) => Input::Keys(console::stdin(), args.escape),
        (false, None) => Input::Pipe(console::stdin()),
    };
    let mut out = tokio::io::stdout();
    let end = tokio::select! {
        end = console::session(stream, &mut input, &mut out) => end,
        () = interrupts.next() => Ok(End::Escaped),
    };
    let was_raw = raw.is_some();
    drop(raw);
    match end? {
        End::Closed => eprintln!("the console has closed"),
        End::InputDone => eprintln!(
            "standard input has ended; --no-input shows the output until the console closes"
        ),
        End::Escaped if was_raw => eprintln!(),
        End::Escaped => {}
    }
    Ok(ExitCode::SUCCESS)
}

fn console_socket(info: Option<&str>) -> anyhow::Result<String> {
    let info = info.context("the daemon says nothing about this VM's console")?;
    let info: Info = serde_json::from_str(info)
        .context("the daemon's description of this VM names no console socket")?;
    Ok(info.vm.console_socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_found_among_other_facts() {
        let info = r#"{"pid": 7, "vm": {"vcpus": 1, "consoleSocket": "/run/c.sock"}}"#;
        assert_eq!(console_socket(Some(info)).unwrap(), "/run/c.sock");
        for info in [None, Some("{}"), Some("nonsense"), Some(r#"{"vm": {}}"#)] {
            assert!(console_socket(info).is_err(), "{info:?}");
        }
    }
}
