//! `group list`: the groups of a namespace or of all, once or as they change.
//!
//! Invariant: a group that cannot be read hides no other: it is a row with the reason.
//! Failure: the cluster's.

use std::collections::HashMap;
use std::pin::pin;
use std::process::ExitCode;

use clap::Args;
use crds::conditions::{READY, find};
use crds::guard::Guarded;
use crds::{PowerState, VirtualMachineGroup};
use futures_util::StreamExt as _;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Resource as _, ResourceExt as _};

use super::super::list::age;
use super::super::requested::{Said, broken};
use crate::cluster::{ClusterArgs, listed};
use crate::table::{self, Table};

/// Groups to list.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// List the groups of all namespaces.
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// After listing, watch: print each group again when it changes.
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

const HEADER: [&str; 7] = [
    "NAMESPACE",
    "NAME",
    "POWER",
    "READY",
    "ON",
    "AGE",
    "MESSAGE",
];
/// The column that differs with time alone.
const AGE: usize = 5;

type Row = [String; 7];

pub(crate) async fn run(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    let api: Api<Guarded<VirtualMachineGroup>> = cluster.api_of(args.all_namespaces);
    let groups = listed::each(&api, &ListParams::default()).await?;
    if args.watch {
        let cluster = args.cluster.connect_to_watch().await?;
        follow(cluster.api_of(args.all_namespaces)).await?;
        return Ok(ExitCode::SUCCESS);
    }
    if groups.is_empty() {
        let place = if args.all_namespaces {
            "the cluster".to_owned()
        } else {
            format!("namespace {}", cluster.namespace)
        };
        eprintln!("no groups in {place}");
        return Ok(ExitCode::SUCCESS);
    }
    let now = Timestamp::now();
    let rows: Vec<_> = groups.iter().map(|group| row(group, now)).collect();
    super::super::print(&table::render(HEADER, &rows))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a line whenever what it says of a group changes.
async fn follow(api: Api<Guarded<VirtualMachineGroup>>) -> anyhow::Result<()> {
    let mut screen = Table::new(&HEADER);
    let usual = [12, 16, 10, 5, 7, 4, 0].map(|width| "x".repeat(width));
    screen.measure(&usual);
    super::super::print(&screen.header())?;
    let mut printed: HashMap<(String, String), Row> = HashMap::new();
    let mut said = Said::default();
    let mut events = pin!(watcher(api, Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        let row = match event {
            Ok(Event::Apply(group) | Event::InitApply(group)) => row(&group, Timestamp::now()),
            Ok(Event::Delete(group)) => {
                let mut row = row(&group, Timestamp::now());
                printed.remove(&(row[0].clone(), row[1].clone()));
                row[6] = "deleted".to_owned();
                super::super::print(&screen.row(&row, |_, cell| cell))?;
                continue;
            }
            Ok(Event::Init | Event::InitDone) => continue,
            Err(error) => {
                said.say(&broken(&error));
                continue;
            }
        };
        let key = (row[0].clone(), row[1].clone());
        if printed.get(&key).is_none_or(|old| differs(old, &row)) {
            screen.measure(&row);
            super::super::print(&screen.row(&row, |_, cell| cell))?;
            printed.insert(key, row);
        }
    }
    Ok(())
}

fn differs(old: &Row, new: &Row) -> bool {
    let mut cells = old.iter().zip(new).enumerate();
    cells.any(|(column, (old, new))| column != AGE && old != new)
}

fn row(group: &Guarded<VirtualMachineGroup>, now: Timestamp) -> Row {
    let namespace = group.namespace().unwrap_or_default();
    let name = group.name_any();
    let since = age(group.meta().creation_timestamp.as_ref(), now);
    let dash = || "-".to_owned();
    let group = match &group.0 {
        Ok(group) => group,
        Err(bad) => {
            let text = listed::text(bad);
            return [namespace, name, dash(), dash(), dash(), since, text];
        }
    };
    let status = group.status.clone().unwrap_or_default();
    let power = group.spec.power_state.map(|power| format!("{power:?}"));
    let ready = find(&status.conditions, READY);
    let members = &status.members;
    let on = members
        .iter()
        .filter(|member| member.power_state == Some(PowerState::PoweredOn));
    [
        namespace,
        name,
        power.unwrap_or_else(dash),
        ready.map_or_else(dash, |ready| ready.status.clone()),
        format!("{}/{}", on.count(), members.len()),
        since,
        ready.map_or_else(String::new, |ready| ready.message.clone()),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::status::tests::{group, member};
    use super::*;

    fn shown(group: &VirtualMachineGroup) -> Row {
        let text = serde_json::to_string(group).unwrap();
        let now = "2026-01-01T12:00:00Z".parse().unwrap();
        row(&serde_json::from_str(&text).unwrap(), now)
    }

    #[test]
    fn a_group_is_a_line_with_the_number_of_members_that_are_on() {
        let members = json!([
            member("db", "PoweredOn", &[]),
            member("web", "PoweredOff", &[]),
        ]);
        let group = group(&members);
        let row = shown(&group);
        let message = "conditions of members say why: web";
        let expected = ["default", "shop", "PoweredOn", "False", "1/2", "-", message];
        assert_eq!(row, expected);
        let mut later = row.clone();
        later[AGE] = "5m".to_owned();
        assert!(!differs(&row, &later));
        later[4] = "2/2".to_owned();
        assert!(differs(&row, &later));
    }

    #[test]
    fn a_group_that_cannot_be_read_is_a_line_too() {
        let text = json!({"metadata": {"name": "new", "namespace": "default"},
            "spec": {"powerState": "OfANewerVersion"}});
        let group = serde_json::from_str(&text.to_string()).unwrap();
        let row = row(&group, Timestamp::now());
        assert!(
            row[1] == "new" && row[6].contains("OfANewerVersion"),
            "{row:?}"
        );
    }
}
