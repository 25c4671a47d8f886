//! `group start`, `group stop`, `group suspend`: the power state of groups.
//!
//! Invariant: the field is written to the group that was read, never to another one of its name.
//! Failure: the cluster's; a time of a later request that is set already is a conflict.

use std::process::ExitCode;

use clap::Args;
use crds::{PowerState, VirtualMachineGroup};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use super::watch::{Target, follow};
use super::{Groups, about, each, name, read};
use crate::cluster::{Cluster, ClusterArgs, ClusterError};

/// Groups, and how to change them.
#[derive(Debug, Args)]
pub(crate) struct PowerArgs {
    #[command(flatten)]
    groups: Groups,
    /// Give the power state to all members once more, also to those that were changed directly.
    #[arg(long)]
    again: bool,
    /// Only validate the change in the cluster; do not make it.
    #[arg(long)]
    dry_run: bool,
    /// Print each member when it changes, until all have the power state. Ctrl-C ends this only.
    #[arg(short, long, alias = "wait", conflicts_with = "dry_run")]
    watch: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(super) async fn run(
    args: &PowerArgs,
    power: PowerState,
    verb: &str,
) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    let mut targets = Vec::new();
    let names = args.groups.groups.iter();
    let names = names.map(|word| name(word).to_owned());
    let ended = each(names, async |name| {
        let before = read(&cluster, name).await?;
        let after = request(&cluster, &before, power, args).await?;
        targets.push(Target::requested(&after, power));
        let done = if args.dry_run {
            format!("{verb} requested (dry run)")
        } else if before.metadata.generation == after.metadata.generation {
            "unchanged: --again gives the power state to its members once more".to_owned()
        } else {
            format!("{verb} requested")
        };
        Ok(format!("virtualmachinegroup.vmlet.dev/{name} {done}"))
    })
    .await;
    if args.watch {
        for target in targets {
            follow(&args.cluster, target).await?;
        }
    }
    ended
}

/// Writes the field; the group as it is then.
async fn request(
    cluster: &Cluster,
    group: &VirtualMachineGroup,
    power: PowerState,
    args: &PowerArgs,
) -> Result<VirtualMachineGroup, ClusterError> {
    let name = group.name_any();
    let params = PatchParams {
        dry_run: args.dry_run,
        field_manager: Some("vmletctl".to_owned()),
        ..PatchParams::default()
    };
    let force = args.again.then(|| next(group, Timestamp::now()));
    let force = force.transpose()?;
    let patch = serde_json::from_value(patch(group, power, force.as_deref()));
    let patch = patch.map_err(|e| ClusterError::Other(Box::new(kube::Error::SerdeError(e))))?;
    let api: Api<VirtualMachineGroup> = cluster.api();
    let patch = Patch::<()>::Json(patch);
    let patched = api.patch(&name, &params, &patch).await;
    patched.map_err(|error| about(cluster, &name, error))
}

fn patch(group: &VirtualMachineGroup, power: PowerState, force: Option<&str>) -> Value {
    let mut steps = vec![
        json!({"op": "test", "path": "/metadata/uid", "value": group.uid()}),
        json!({"op": "add", "path": "/spec/powerState", "value": power}),
    ];
    let path = "/spec/nextForcePowerStateSyncTime";
    steps.extend(force.map(|time| json!({"op": "add", "path": path, "value": time})));
    json!(steps)
}

/// A time that the group has not had: now, in whole seconds.
fn next(group: &VirtualMachineGroup, now: Timestamp) -> Result<String, ClusterError> {
    let conflict = |conflict: &str| ClusterError::Conflict {
        name: group.name_any(),
        conflict: conflict.to_owned(),
    };
    let text = |time: Timestamp| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let last = group.spec.next_force_power_state_sync_time.as_deref();
    let last: Option<Timestamp> = last.and_then(|last| last.parse().ok());
    let Some(last) = last else {
        return Ok(text(now));
    };
    if last > now {
        return Err(conflict(
            "its nextForcePowerStateSyncTime is in the future: it gives the power state to its members then",
        ));
    }
    let later = last.checked_add(SignedDuration::from_secs(1));
    let later = later.map_err(|_| conflict("its nextForcePowerStateSyncTime is out of range"))?;
    Ok(text(later.max(now)))
}

#[cfg(test)]
mod tests {
    use super::super::status::tests::group;
    use super::*;

    #[test]
    fn one_field_of_the_group_that_was_read_is_written() {
        let group = group(&json!([]));
        let steps = patch(&group, PowerState::PoweredOff, None);
        assert_eq!(
            steps,
            json!([
                {"op": "test", "path": "/metadata/uid", "value": "u"},
                {"op": "add", "path": "/spec/powerState", "value": "PoweredOff"},
            ])
        );
        let again = patch(&group, PowerState::PoweredOff, Some("t"));
        assert_eq!(again[2]["value"], "t");
    }

    #[test]
    fn each_request_has_a_time_of_its_own() {
        let mut group = group(&json!([]));
        let now = "2026-01-01T12:00:00.7Z".parse().unwrap();
        let mut next_after = |last: Option<&str>| {
            group.spec.next_force_power_state_sync_time = last.map(str::to_owned);
            next(&group, now)
        };
        assert_eq!(next_after(None).unwrap(), "2026-01-01T12:00:00Z");
        let same = next_after(Some("2026-01-01T12:00:00Z")).unwrap();
        assert_eq!(same, "2026-01-01T12:00:01Z");
        let later = next_after(Some("2026-01-01T12:00:09Z")).unwrap_err();
        assert!(later.to_string().contains("in the future"), "{later}");
    }
}
