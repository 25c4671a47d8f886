//! `ps`: the pods of this node.
//!
//! Invariant: JSON has full ids and one object per pod; the table has short ids.
//! Failure: the daemon's; a pod that vanishes meanwhile is listed without its address.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::context::Endpoint;
use crate::pods::{self, Pod};
use crate::runtime::Runtime;
use crate::table;

/// Pods to list, and the output format.
#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Include stopped pods.
    #[arg(short, long)]
    all: bool,
    /// Only list pods in this namespace.
    #[arg(short, long)]
    namespace: Option<String>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Output {
    Table,
    Json,
}

/// One pod, as printed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    name: String,
    namespace: String,
    uid: String,
    state: &'static str,
    /// Empty when the pod has no address.
    ip: String,
    image: String,
    /// Nanoseconds since the epoch.
    created_at: i64,
    age_seconds: u64,
    pod_id: String,
    /// Of the newest container.
    container_id: Option<String>,
}

pub(crate) async fn run(endpoint: &Endpoint, args: &PsArgs) -> anyhow::Result<ExitCode> {
    let runtime = endpoint.connect().await?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mut rows = Vec::new();
    for pod in pods::all(&runtime).await? {
        let is_wanted = args.namespace.as_ref().is_none_or(|n| n == pod.namespace());
        if is_wanted && (args.all || pod.is_ready()) {
            rows.push(row(&pod, address(&runtime, &pod).await, now));
        }
    }
    match args.output {
        Output::Table => super::print(&table(&rows))?,
        Output::Json => super::print(&format!("{}\n", serde_json::to_string_pretty(&rows)?))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists do not carry addresses.
async fn address(runtime: &Runtime, pod: &Pod) -> String {
    if !pod.is_ready() {
        return String::new();
    }
    let status = runtime.sandbox_status(pod.id()).await.ok();
    status
        .and_then(|s| s.network)
        .map(|n| n.ip)
        .unwrap_or_default()
}

fn row(pod: &Pod, ip: String, now: Duration) -> Row {
    let created = Duration::from_nanos(u64::try_from(pod.sandbox.created_at).unwrap_or(0));
    Row {
        name: pod.name().to_owned(),
        namespace: pod.namespace().to_owned(),
        uid: pod.uid().to_owned(),
        state: pod.state(),
        ip,
        image: pod.image().to_owned(),
        created_at: pod.sandbox.created_at,
        age_seconds: now.saturating_sub(created).as_secs(),
        pod_id: pod.id().to_owned(),
        container_id: pod.container().map(|c| c.id.clone()),
    }
}

fn table(rows: &[Row]) -> String {
    let or_dash = |text: &str| {
        if text.is_empty() {
            "-".to_owned()
        } else {
            text.to_owned()
        }
    };
    let cells: Vec<_> = rows
        .iter()
        .map(|row| {
            [
                row.name.clone(),
                row.namespace.clone(),
                row.state.to_owned(),
                or_dash(&row.ip),
                or_dash(&row.image),
                table::age(Duration::from_secs(row.age_seconds)),
                table::short(&row.pod_id),
                or_dash(&table::short(
                    row.container_id.as_deref().unwrap_or_default(),
                )),
            ]
        })
        .collect();
    table::render(
        [
            "NAME",
            "NAMESPACE",
            "STATE",
            "IP",
            "IMAGE",
            "AGE",
            "POD",
            "CONTAINER",
        ],
        &cells,
    )
}

#[cfg(test)]
mod tests {
    use cri_proto::v1::{Container, ContainerState, ImageSpec, PodSandbox, PodSandboxMetadata};

    use super::*;

    fn rows() -> Vec<Row> {
        let sandbox = |id: &str, name: &str, created_at| PodSandbox {
            id: id.repeat(64),
            metadata: Some(PodSandboxMetadata {
                name: name.into(),
                namespace: "default".into(),
                uid: format!("uid-{name}"),
                attempt: 0,
            }),
            created_at,
            ..Default::default()
        };
        let container = Container {
            id: "c".repeat(64),
            image: Some(ImageSpec {
                image: "sha256:00".into(),
                user_specified_image: "vmlet.dev/hello:1".into(),
                ..Default::default()
            }),
            state: ContainerState::ContainerRunning.into(),
            ..Default::default()
        };
        let running = Pod {
            sandbox: sandbox("a", "hello", 1_000_000_000),
            containers: vec![container],
        };
        let bare = Pod {
            sandbox: sandbox("b", "bare", 0),
            containers: vec![],
        };
        let now = Duration::from_secs(4001);
        vec![
            row(&running, "10.88.0.7".into(), now),
            row(&bare, String::new(), now),
        ]
    }

    #[test]
    fn the_table_has_short_ids_and_dashes_for_what_is_unknown() {
        insta::assert_snapshot!(table(&rows()), @"
        NAME   NAMESPACE  STATE    IP         IMAGE              AGE  POD            CONTAINER
        hello  default    Running  10.88.0.7  vmlet.dev/hello:1  66m  aaaaaaaaaaaaa  ccccccccccccc
        bare   default    Ready    -          -                  66m  bbbbbbbbbbbbb  -
        ");
    }

    #[test]
    fn json_has_full_ids() {
        insta::assert_json_snapshot!(rows()[0], @r#"
        {
          "name": "hello",
          "namespace": "default",
          "uid": "uid-hello",
          "state": "Running",
          "ip": "10.88.0.7",
          "image": "vmlet.dev/hello:1",
          "createdAt": 1000000000,
          "ageSeconds": 4000,
          "podId": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
          "containerId": "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
        }
        "#);
    }
}
