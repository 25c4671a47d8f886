//! `image versions`: what an image that follows a tag or a file has been.
//!
//! Invariant: the order is that of the status, the newest first.
//! Failure: the cluster's; [`NotFollowing`] for an image that follows neither.

use std::process::ExitCode;

use clap::Args;
use crds::conditions::find;
use crds::{ImageVersion, ImageVersionState, VirtualMachineImageStatus};
use k8s_openapi::jiff::Timestamp;

use super::pull::target::{Scope, Target};
use crate::cluster::ClusterArgs;
use crate::commands::list::age;
use crate::table;

/// Condition of an image that follows a tag or a file.
const UP_TO_DATE: &str = "UpToDate";

/// The image of the list.
#[derive(Debug, Args)]
pub(crate) struct VersionsArgs {
    /// Name of the image.
    #[arg(value_name = "NAME")]
    name: String,
    /// Scope of the image [default: the image of the namespace if there is one, else the image of
    /// the cluster].
    #[arg(long, value_enum, value_name = "SCOPE")]
    scope: Option<Scope>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// An image without `spec.update`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("image {0} follows no tag and no file: set spec.update of the image")]
pub(super) struct NotFollowing(pub(super) String);

pub(crate) async fn run(args: &VersionsArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    let target = Target::find(&cluster, &args.name, args.scope).await?;
    let (update, status) = target.versions().await?;
    if update.is_none() {
        return Err(NotFollowing(args.name.clone()).into());
    }
    if !status.versions.is_empty() {
        crate::commands::print(&render(&status, Timestamp::now()))?;
    }
    if let Some(obstacle) = obstacle(&status) {
        eprintln!("{obstacle}");
    }
    Ok(ExitCode::SUCCESS)
}

fn render(status: &VirtualMachineImageStatus, now: Timestamp) -> String {
    let current = status.update.as_ref();
    let current = current.and_then(|update| update.current.as_deref());
    let row = |version: &ImageVersion| {
        let mark = if current == Some(version.digest.as_str()) {
            "*"
        } else {
            ""
        };
        let nodes = match version.state {
            ImageVersionState::Ready => version.ready_nodes.to_string(),
            ImageVersionState::Pulling => pulled(status),
        };
        [
            mark.to_owned(),
            version.digest.clone(),
            format!("{:?}", version.state),
            nodes,
            age(Some(&version.found_time), now),
        ]
    };
    let rows: Vec<_> = status.versions.iter().map(row).collect();
    table::render(["USED", "VERSION", "STATE", "NODES", "AGE"], &rows)
}

/// Nodes that have the newest version, of those that are to have it.
fn pulled(status: &VirtualMachineImageStatus) -> String {
    let pulls = status
        .update
        .as_ref()
        .and_then(|update| update.pulls.as_ref());
    pulls.map_or("-".to_owned(), |pulls| {
        format!("{}/{}", pulls.ready, pulls.desired)
    })
}

/// Why new machines do not use the newest version.
fn obstacle(status: &VirtualMachineImageStatus) -> Option<String> {
    let Some(condition) = find(&status.conditions, UP_TO_DATE) else {
        return Some("no node has made a check yet".to_owned());
    };
    let is_other = condition.status != "True";
    is_other.then(|| {
        let text = format!("{}: {}", condition.reason, condition.message);
        crds::text::printable(text.trim_end_matches(": "), 4096)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_version_of_new_machines_has_a_mark_and_the_newest_its_progress() {
        let version = |digit: &str, state: &str, nodes: u32| {
            json!({
                "digest": format!("sha256:{}", digit.repeat(64)), "state": state,
                "foundTime": "2026-01-01T00:00:00Z", "readyNodes": nodes,
                "image": { "format": "qcow2" },
            })
        };
        let condition = json!({
            "type": UP_TO_DATE, "status": "False", "reason": "Pulling", "message": "1 of 3 nodes\u{7}",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let status: VirtualMachineImageStatus = serde_json::from_value(json!({
            "versions": [version("b", "Pulling", 0), version("a", "Ready", 3)],
            "update": {
                "current": format!("sha256:{}", "a".repeat(64)),
                "pulls": { "desired": 3, "ready": 1 },
            },
            "conditions": [condition],
        }))
        .unwrap();
        let now = "2026-01-01T02:00:00Z".parse().unwrap();
        let lines = render(&status, now);
        let words: Vec<Vec<_>> = lines
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(words[0], ["USED", "VERSION", "STATE", "NODES", "AGE"]);
        assert_eq!(words[1][1..], ["Pulling", "1/3", "2h"]);
        assert_eq!(words[2][0], "*");
        assert_eq!(words[2][2..], ["Ready", "3", "2h"]);
        assert_eq!(obstacle(&status).unwrap(), "Pulling: 1 of 3 nodes");
        let none = VirtualMachineImageStatus::default();
        assert_eq!(obstacle(&none).unwrap(), "no node has made a check yet");
    }
}
