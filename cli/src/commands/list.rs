//! `list`: machines of a namespace or of all, once or as they change.
//!
//! Invariant: JSON and YAML are what the server sent; only tables are made for people. A machine that
//! cannot be read hides no other.
//! Failure: the cluster's.

mod progress;
mod row;
pub(super) mod watch;

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use crds::guard::Guarded;
use crds::names::VM_UID_LABEL;
use crds::vm::PrintableStatus as Word;
use crds::{VirtualMachine, VirtualMachineTask};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use crate::cluster::{Cluster, ClusterArgs, listed};
use crate::colour::When;

use progress::{may_wait_for_its_turn, progress};
use row::{Columns, Row};
pub(super) use row::{age, dash, desired_state};

/// Machines to list, and the output format.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// List the machines of all namespaces.
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Only list machines with these labels, such as `app=web,tier!=test`.
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,
    /// Only list machines with these fields, such as `metadata.name=web`.
    #[arg(long, value_name = "FIELDS")]
    field_selector: Option<String>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// After listing, watch: print each machine again when it changes, with the progress of its
    /// image and its boot.
    #[arg(short, long)]
    watch: bool,
    /// When to use colours.
    #[arg(long, value_enum, default_value_t)]
    color: When,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// One line per machine.
    Table,
    /// One line per machine, with more columns.
    Wide,
    /// Names only.
    Name,
    /// JSON, as in the API.
    Json,
    /// YAML, as in the API.
    Yaml,
}

pub(crate) async fn run(args: &ListArgs) -> anyhow::Result<ExitCode> {
    if args.watch && !matches!(args.output, Output::Table | Output::Wide) {
        anyhow::bail!("--watch prints tables only: leave out --output, or give -o wide");
    }
    let cluster = if args.watch {
        args.cluster.connect_to_watch().await?
    } else {
        args.cluster.connect().await?
    };
    let columns = Columns {
        namespace: args.all_namespaces,
        wide: args.output == Output::Wide,
        progress: args.watch,
    };
    match args.output {
        _ if args.watch => Box::pin(watch::run(&cluster, args, columns)).await?,
        Output::Table | Output::Wide => table(&cluster, args, columns).await?,
        Output::Name | Output::Json | Output::Yaml => raw(&cluster, args).await?,
    }
    Ok(ExitCode::SUCCESS)
}

impl ListArgs {
    fn params(&self) -> ListParams {
        ListParams {
            label_selector: self.selector.clone(),
            field_selector: self.field_selector.clone(),
            ..ListParams::default()
        }
    }
}

async fn table(cluster: &Cluster, args: &ListArgs, columns: Columns) -> anyhow::Result<()> {
    let all = args.all_namespaces;
    let api: Api<Guarded<VirtualMachine>> = cluster.api_of(all);
    let machines = listed::each(&api, &args.params()).await?;
    if machines.is_empty() {
        let place = if all {
            "the cluster".into()
        } else {
            format!("namespace {}", cluster.namespace)
        };
        eprintln!("no virtual machines in {place}");
        return Ok(());
    }
    // For the others no pods are listed: conditions say what is in the way.
    let pods = if machines.iter().any(needs_pods) {
        pods(cluster, all).await
    } else {
        Vec::new()
    };
    let rows = rows(&machines, &pods, Timestamp::now());
    let columns = Columns {
        progress: rows.iter().any(Row::has_progress),
        ..columns
    };
    super::print(&row::render(&rows, columns, args.color.is_on()))?;
    Ok(())
}

/// The pods of machines. Without them the end of a grace period and the node of a new machine are not
/// shown; the machines are all the same.
async fn pods(cluster: &Cluster, all: bool) -> Vec<Pod> {
    let ours = ListParams::default().labels(VM_UID_LABEL);
    let api: Api<Guarded<Pod>> = cluster.api_of(all);
    match listed::each(&api, &ours).await {
        Ok(pods) => pods.into_iter().filter_map(|pod| pod.0.ok()).collect(),
        Err(error) => {
            eprintln!(
                "warning: ends of grace periods and nodes of new machines are not shown: {error}"
            );
            Vec::new()
        }
    }
}

fn rows(machines: &[Guarded<VirtualMachine>], pods: &[Pod], now: Timestamp) -> Vec<Row> {
    let row = |one: &Guarded<VirtualMachine>| match &one.0 {
        Ok(vm) => {
            let around = Around::of_one(one, pods);
            Row::for_machine(vm, progress(vm, &around, now), now)
        }
        Err(unreadable) => Row::unreadable(unreadable, now),
    };
    machines.iter().map(row).collect()
}

/// Whether its guest is to power off: until when is known of its pod only.
fn is_ending(one: &Guarded<VirtualMachine>) -> bool {
    let status = one.0.as_ref().ok().and_then(|vm| vm.status.as_ref());
    let word = status.and_then(|status| status.printable_status);
    matches!(word, Some(Word::Stopping | Word::Terminating))
}

/// Whether its progress is known of its pod only.
fn needs_pods(one: &Guarded<VirtualMachine>) -> bool {
    is_ending(one) || one.0.as_ref().is_ok_and(may_wait_for_its_turn)
}

/// Untyped, so that fields that this program does not know are printed too.
async fn raw(cluster: &Cluster, args: &ListArgs) -> anyhow::Result<()> {
    let kind = ApiResource::erase::<VirtualMachine>(&());
    let api: Api<Guarded<DynamicObject>> = if args.all_namespaces {
        Api::all_with(cluster.client.clone(), &kind)
    } else {
        Api::namespaced_with(cluster.client.clone(), &cluster.namespace, &kind)
    };
    let found = listed::each(&api, &args.params()).await?;
    let mut objects: Vec<_> = found.into_iter().map(known).collect();
    for object in &mut objects {
        object.metadata.managed_fields = None;
    }
    let text = match args.output {
        Output::Name => names(&objects),
        Output::Yaml => super::yaml(&list_of(&objects)?)?,
        _ => format!("{}\n", serde_json::to_string_pretty(&list_of(&objects)?)?),
    };
    super::print(&text)?;
    Ok(())
}

/// The object; of one that cannot be read its metadata.
fn known(one: Guarded<DynamicObject>) -> DynamicObject {
    one.0.unwrap_or_else(|unreadable| {
        let name = unreadable.metadata.name.as_deref().unwrap_or_default();
        eprintln!(
            "warning: of VirtualMachine {name} only the metadata are shown, it {}",
            listed::text(&unreadable)
        );
        DynamicObject {
            types: None,
            metadata: unreadable.metadata,
            data: json!({}),
        }
    })
}

fn names(objects: &[DynamicObject]) -> String {
    let kind = VirtualMachine::plural(&());
    let kind = kind.trim_end_matches('s');
    objects
        .iter()
        .map(|o| format!("{kind}.{}/{}\n", crds::GROUP, o.name_any()))
        .collect()
}

/// A list as kubectl prints it.
fn list_of(objects: &[DynamicObject]) -> Result<Value, serde_json::Error> {
    let mut items = Vec::new();
    for object in objects {
        let mut item = serde_json::to_value(object)?;
        item["apiVersion"] = json!(format!("{}/{}", crds::GROUP, crds::VERSION));
        item["kind"] = json!("VirtualMachine");
        items.push(item);
    }
    Ok(json!({"apiVersion": "v1", "kind": "List", "items": items}))
}

/// The tasks and pods of one machine, out of those that were found.
#[derive(Debug, Clone, Default)]
pub(super) struct Around {
    pub(super) tasks: Vec<VirtualMachineTask>,
    pub(super) pods: Vec<Pod>,
}

impl Around {
    /// The pods of a machine whose progress is known of them only; nothing for another machine.
    fn of_one(one: &Guarded<VirtualMachine>, pods: &[Pod]) -> Self {
        let uid = one.meta().uid.as_ref().filter(|_| needs_pods(one));
        let is_its = |pod: &&Pod| uid.is_some() && pod.labels().get(VM_UID_LABEL) == uid;
        Self {
            tasks: Vec::new(),
            pods: pods.iter().filter(is_its).cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use crds::conditions::{IMAGE_CACHE_READY, PLACEMENT_READY};
    use crds::names::POD_ROLE_LABEL;

    use super::*;

    fn object<K: serde::de::DeserializeOwned>(value: &Value) -> K {
        serde_json::from_str(&value.to_string()).unwrap()
    }

    fn machine(name: &str, word: &str) -> Guarded<VirtualMachine> {
        object(&json!({
            "metadata": { "name": name, "namespace": "default", "uid": name },
            "spec": { "runStrategy": "Halted" }, "status": { "printableStatus": word },
        }))
    }

    fn ending(of: &str, until: &str) -> Pod {
        object(&json!({ "metadata": {
            "name": of, "labels": { VM_UID_LABEL: of }, "deletionTimestamp": until,
        } }))
    }

    #[test]
    fn the_end_of_a_grace_period_is_shown_without_a_watch_too() {
        let machines = [
            machine("web", "Stopping"),
            machine("db", "Terminating"),
            machine("new", "Starting"),
        ];
        assert_eq!(machines.each_ref().map(is_ending), [true, true, false]);
        let pods = [
            ending("web", "2026-01-01T12:05:00Z"),
            ending("db", "2026-01-01T12:06:00Z"),
            // Of an earlier run, which says nothing of the start.
            ending("new", "2026-01-01T12:07:00Z"),
        ];
        let rows = rows(&machines, &pods, "2026-01-01T12:00:00Z".parse().unwrap());
        let columns = Columns {
            progress: true,
            ..Columns::default()
        };
        let text = row::render(&rows, columns, false);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[1].ends_with("has time until 12:05:00 UTC"), "{text}");
        assert!(lines[2].ends_with("has time until 12:06:00 UTC"), "{text}");
        assert!(!lines[3].contains("12:07"), "{text}");
        // A machine whose pods were not listed is there all the same.
        assert_eq!(super::rows(&machines, &[], Timestamp::now()).len(), 3);
    }

    #[test]
    fn a_machine_that_waits_for_its_turn_says_on_which_node_without_a_watch_too() {
        let condition = |kind: &str| {
            json!({ "type": kind, "status": "True", "reason": "True", "message": "",
                "lastTransitionTime": "2026-01-01T12:00:00Z" })
        };
        let waiting = |name: &str, node: Value| -> Guarded<VirtualMachine> {
            object(&json!({
                "metadata": { "name": name, "namespace": "default", "uid": name },
                "spec": { "runStrategy": "Always" },
                "status": { "printableStatus": "Provisioning", "nodeName": node, "conditions": [
                    condition(PLACEMENT_READY), condition(IMAGE_CACHE_READY),
                ] },
            }))
        };
        let machines = [
            waiting("web", Value::Null),
            waiting("db", json!("n2")),
            machine("new", "Provisioning"),
        ];
        assert_eq!(
            machines.each_ref().map(needs_pods),
            [true, false, false],
            "a machine with a node, and one without a place, wait for no turn"
        );
        let placeholder: Pod = object(&json!({
            "metadata": { "name": "p", "labels": { VM_UID_LABEL: "web", POD_ROLE_LABEL: "provision" } },
            "spec": { "nodeName": "n1", "containers": [] },
            "status": { "containerStatuses": [{ "name": "vm", "image": "", "imageID": "",
                "ready": false, "restartCount": 0, "state": { "running": {} } }] },
        }));
        let columns = Columns {
            progress: true,
            ..Columns::default()
        };
        let shown = |pods: &[Pod]| {
            let rows = rows(&machines, pods, Timestamp::now());
            row::render(&rows, columns, false)
        };
        let text = shown(&[placeholder]);
        let lines: Vec<_> = text.lines().map(str::trim_end).collect();
        let turn = "waits for its turn to make the disk";
        assert!(lines[1].ends_with(&format!("{turn} on node n1")), "{text}");
        assert_eq!(text.matches(turn).count(), 1, "{text}");
        // Without the right to list pods.
        let text = shown(&[]);
        let lines: Vec<_> = text.lines().map(str::trim_end).collect();
        assert!(lines[1].ends_with(turn), "{text}");
    }
}
