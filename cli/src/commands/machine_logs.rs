//! `logs`: the console log of a machine of the cluster, or of a VM pod, through the API server.
//!
//! Invariant: the guest's own bytes, in order; no more of them are held than arrive at once.
//! Failure: a machine without a pod has no log, and the error states what to look at; a stream that
//! breaks off is an error.

use std::pin::pin;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::Args;
use crds::VirtualMachine;
use futures_util::{AsyncBufRead, AsyncBufReadExt};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::LogParams;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::cluster::{Cluster, ClusterArgs, ClusterError, Found, seconds};
use crate::logs::LogError;

/// The container of a machine's pod.
const CONTAINER: &str = "vm";

/// Machine whose log to print, and which part of the log.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// Name of the virtual machine, or of a VM pod.
    name: String,
    /// Follow the log until the VM ends.
    #[arg(short, long)]
    follow: bool,
    /// Number of lines to print from the end of the log.
    #[arg(long, value_name = "N")]
    tail: Option<u32>,
    /// Only print lines newer than this duration, such as 20 (seconds), 20s or 2m.
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    since: Option<u32>,
    /// Print the log of the previous VM in the same pod.
    #[arg(short, long)]
    previous: bool,
    /// Print a timestamp at the beginning of each line.
    #[arg(long)]
    timestamps: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) async fn run(args: &LogsArgs) -> anyhow::Result<ExitCode> {
    let mut cluster = args.cluster.connect().await?;
    let pod = pod(&cluster, &args.name).await?;
    if args.follow {
        cluster = args.cluster.connect_to_follow().await?;
    }
    let params = args.params(&pod);
    let log = cluster.api::<Pod>().log_stream(&args.name, &params).await;
    let log = log.map_err(|error| refused(&cluster.namespace, &args.name, error))?;
    print(pin!(log), &mut tokio::io::stdout())
        .await
        .with_context(|| format!("log of {}", args.name))?;
    Ok(ExitCode::SUCCESS)
}

impl LogsArgs {
    fn params(&self, pod: &Pod) -> LogParams {
        LogParams {
            container: container(pod),
            follow: self.follow,
            previous: self.previous,
            since_seconds: self.since.map(i64::from),
            tail_lines: self.tail.map(i64::from),
            timestamps: self.timestamps,
            ..LogParams::default()
        }
    }
}

/// The pod of the machine; where there is no such machine, the pod of that name.
async fn pod(cluster: &Cluster, name: &str) -> anyhow::Result<Pod> {
    let missing = match cluster.find(name).await {
        Ok(Found { pod: Some(pod), .. }) => return Ok(pod),
        Ok(Found { vm, pod: None }) => return Err(does_not_run(&vm)),
        Err(missing @ (ClusterError::NotFound { .. } | ClusterError::NoKinds)) => missing,
        Err(error) => return Err(error.into()),
    };
    let pod = cluster.api::<Pod>().get_opt(name).await;
    let pod = pod.map_err(|error| ClusterError::about(&cluster.namespace, name, error))?;
    Ok(pod.ok_or(missing)?)
}

fn does_not_run(vm: &VirtualMachine) -> anyhow::Error {
    let name = vm.name_any();
    let state = vm.status.as_ref().and_then(|s| s.printable_status);
    let state = state.map_or("new".to_owned(), |word| format!("{word:?}"));
    anyhow!(
        "{name} does not run, it is {state}, and so has no log: `vmletctl status {name}` says more"
    )
}

/// A machine's pod has one name for it; in other pods the first container is the VM.
fn container(pod: &Pod) -> Option<String> {
    let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice());
    let mut names = containers.unwrap_or_default().iter().map(|c| &c.name);
    let first = names.clone().next();
    names.find(|name| *name == CONTAINER).or(first).cloned()
}

/// A log that is not there is refused with 400 and a sentence, such as one that waits for its
/// container.
fn refused(namespace: &str, name: &str, error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) if status.code == 400 => {
            anyhow!("{name} has no such log: {}", status.message)
        }
        other => ClusterError::about(namespace, name, other).into(),
    }
}

async fn print(
    mut log: impl AsyncBufRead + Unpin,
    out: &mut (impl AsyncWrite + Unpin),
) -> anyhow::Result<()> {
    loop {
        let chunk = log.fill_buf().await.context("it broke off")?;
        let length = chunk.len();
        if length == 0 {
            return Ok(());
        }
        out.write_all(chunk).await.map_err(LogError::Print)?;
        out.flush().await.map_err(LogError::Print)?;
        log.consume_unpin(length);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use clap::Parser;
    use futures_util::{TryStreamExt, stream};
    use serde_json::json;

    use super::*;
    use crate::commands::is_unread;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: LogsArgs,
    }

    fn pod_of(containers: &[&str]) -> Pod {
        let containers: Vec<_> = containers.iter().map(|n| json!({"name": n})).collect();
        serde_json::from_value(json!({"spec": {"containers": containers}})).unwrap()
    }

    #[test]
    fn flags_choose_the_part_of_the_log() {
        let line = "logs web -f --tail 5 --since 2m -p --timestamps";
        let line = Line::try_parse_from(line.split(' ')).unwrap();
        let params = line.args.params(&pod_of(&["side", "vm"]));
        assert_eq!(params.container.as_deref(), Some("vm"));
        assert!(params.follow && params.previous && params.timestamps);
        assert_eq!(
            (params.tail_lines, params.since_seconds),
            (Some(5), Some(120))
        );
    }

    #[test]
    fn a_pod_without_a_machine_has_its_vm_first() {
        assert_eq!(container(&pod_of(&["guest"])).as_deref(), Some("guest"));
        assert_eq!(container(&Pod::default()), None);
    }

    #[test]
    fn a_machine_without_a_pod_reports_its_status() {
        let reported = |status| {
            let vm = serde_json::from_value(json!({
                "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachine",
                "metadata": {"name": "web"}, "spec": {"running": true}, "status": status,
            }));
            does_not_run(&vm.unwrap()).to_string()
        };
        let stopped = reported(json!({"printableStatus": "Stopped"}));
        assert!(stopped.contains("it is Stopped") && stopped.contains("vmletctl status web"));
        assert!(reported(json!({})).contains("it is new"));
    }

    #[test]
    fn a_log_that_is_not_there_is_the_servers_sentence() {
        let answer = |code: u16| {
            let status = json!({"status": "Failure", "code": code, "reason": "x",
                "message": "container \"vm\" is waiting to start", "details": {"name": "web"}});
            let status = serde_json::from_value::<kube::core::Status>(status).unwrap();
            refused("default", "web", kube::Error::Api(status.boxed())).to_string()
        };
        let waits = "web has no such log: container \"vm\" is waiting to start";
        assert_eq!(answer(400), waits);
        assert!(answer(403).starts_with("not allowed: "));
    }

    #[tokio::test]
    async fn bytes_pass_as_they_are_and_a_break_is_an_error() {
        let chunks = [Ok(&b"a\x1b[2J\xff"[..]), Ok(b"\r\nb")];
        let mut out = Vec::new();
        let log = stream::iter(chunks).into_async_read();
        print(log, &mut out).await.unwrap();
        assert_eq!(out, b"a\x1b[2J\xff\r\nb");

        let broken = [Ok(&b"a"[..]), Err(Error::from(ErrorKind::BrokenPipe))];
        let error = print(stream::iter(broken).into_async_read(), &mut out).await;
        assert!(!is_unread(&error.unwrap_err()), "the server hung up");
    }

    #[tokio::test]
    async fn a_reader_that_has_seen_enough_is_no_error() {
        let (mut out, reader) = tokio::io::duplex(1);
        drop(reader);
        let error = print(&b"text"[..], &mut out).await.unwrap_err();
        assert!(is_unread(&error.context("log of web")));
    }
}
