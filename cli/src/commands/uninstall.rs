//! `uninstall`: what is left of virtual machines in a cluster, in the order in which it is to be
//! removed; allows the removal of our kinds when nothing is left, and takes that back.
//!
//! Invariant: nothing is deleted. The removal of the kinds is allowed after a look that found nothing,
//! and stays allowed only after a second one: until the permission is in force, machines can be created.
//! With `--check`, and for one node, nothing is written.
//! Failure: the cluster's; a list or an object that cannot be read ends the command, since what is not
//! seen may be left, and ends the permission. One that cannot be taken back stands; the next call, with
//! `--cancel` or without, begins there.

mod left;
mod permission;

use std::process::ExitCode;

use clap::Args;
use crds::guard::Guarded;
use crds::node_facts::{NodeFacts, is_fresh, node_of_lease};
use crds::{
    VirtualMachine, VirtualMachineBackup, VirtualMachineReplicaSet, VirtualMachineTask, names,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use self::left::{Agent, Kind, Left, Purpose};
use crate::called;
use crate::cluster::{ClusterArgs, ClusterError, listed};

/// Objects for each request: a cluster may have very many pods.
const PAGE: u32 = 500;

/// What to look for, and whether to write anything.
#[derive(Debug, Args)]
pub(crate) struct UninstallArgs {
    /// Only show what is left; exit with code 1 while there is anything.
    #[arg(long)]
    check: bool,
    /// Show what is left on one node, before Vmlet is removed from it.
    #[arg(long, value_name = "NODE", requires = "check")]
    node: Option<String>,
    /// Disks on nodes are left on purpose, and do not count.
    #[arg(long)]
    keep_disks: bool,
    /// Take the permission to remove the kinds back, so that machines can be created again.
    #[arg(long, conflicts_with_all = ["check", "keep_disks"])]
    cancel: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(crate) async fn run(args: &UninstallArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    let client = &cluster.client;
    let kinds = kinds(client).await?;
    if kinds.is_empty() {
        super::print("no kind of vmlet.dev is installed: nothing is left in the cluster\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.cancel {
        permission::withdraw(client, &kinds).await?;
        super::print(&called::adapted(&left::cancelled(&kinds)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let purpose = match &args.node {
        Some(node) => Purpose::Node(node.clone()),
        None if args.check => Purpose::Check,
        None => Purpose::Removal,
    };
    let mut left = look(client, kinds, args, &purpose).await?;
    super::print(&called::adapted(&left.report(&purpose)))?;
    if matches!(purpose, Purpose::Removal) {
        left = allow(client, left, args).await?;
    }
    Ok(if left.is_something() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Allows the removal of the kinds if nothing is left; takes it back if something is. What is left in the
/// end.
async fn allow(client: &Client, first: Left, args: &UninstallArgs) -> anyhow::Result<Left> {
    let mut left = first;
    if !left.is_something() {
        permission::give(client, &left.kinds).await?;
        // Perhaps one was created since it was looked for. From here on none can be.
        let second = look_again(client, args).await;
        if second.is_err() {
            permission::withdraw(client, &left.kinds).await?;
        }
        left = second?;
        if !left.is_something() {
            super::print(&called::adapted(left::ALLOWED))?;
            return Ok(left);
        }
        super::print(&called::adapted(&left.report(&Purpose::Removal)))?;
    }
    if left.is_allowed() {
        permission::withdraw(client, &left.kinds).await?;
        super::print(left::WITHDRAWN)?;
    }
    Ok(left)
}

async fn look_again(client: &Client, args: &UninstallArgs) -> Result<Left, ClusterError> {
    let kinds = kinds(client).await?;
    look(client, kinds, args, &Purpose::Removal).await
}

/// Everything that is removed before the kinds are.
async fn look(
    client: &Client,
    kinds: Vec<Kind>,
    args: &UninstallArgs,
    purpose: &Purpose,
) -> Result<Left, ClusterError> {
    let now = Timestamp::now();
    let has = |plural: &str| kinds.iter().any(|kind| kind.is(plural));
    let machines: Vec<VirtualMachine> = if has("virtualmachines") {
        all(&Api::all(client.clone())).await?
    } else {
        Vec::new()
    };
    let sets: Vec<VirtualMachineReplicaSet> = if has("virtualmachinereplicasets") {
        all(&Api::all(client.clone())).await?
    } else {
        Vec::new()
    };
    let backups: Vec<VirtualMachineBackup> = if has("virtualmachinebackups") {
        all(&Api::all(client.clone())).await?
    } else {
        Vec::new()
    };
    let tasks: Vec<VirtualMachineTask> = if has("virtualmachinetasks") {
        all(&Api::all(client.clone())).await?
    } else {
        Vec::new()
    };
    let classes: Vec<RuntimeClass> = all(&Api::all(client.clone())).await?;
    let classes = classes.into_iter().filter(|class| {
        let handler = class.handler.strip_prefix(names::RUNTIME_CLASS);
        handler.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    });
    let classes: Vec<String> = classes.map(|class| class.name_any()).collect();
    let pods: Vec<Pod> = all(&Api::all(client.clone())).await?;
    let nodes: Vec<Node> = all(&Api::all(client.clone())).await?;
    let leases: Api<Guarded<Lease>> = Api::all(client.clone());
    let ours = ListParams::default().labels(names::NODE_LEASE_LABEL);
    let leases = listed::each(&leases, &ours).await?.into_iter();
    let leases: Vec<_> = leases.map(listed::required).collect::<Result<_, _>>()?;
    let agents = leases
        .iter()
        .filter_map(|lease| agent(lease, now))
        .collect();
    let mut left = Left::find(&left::Seen {
        sets: &sets,
        machines: &machines,
        backups: &backups,
        tasks: &tasks,
        pods: &pods,
        runtime_classes: &classes,
        nodes: nodes.iter().map(ResourceExt::name_any).collect(),
        agents,
        kinds,
        now,
    });
    left.disks_are_kept = args.keep_disks;
    if let Purpose::Node(node) = purpose {
        left.only_on(node);
    }
    Ok(left)
}

fn agent(lease: &Lease, now: Timestamp) -> Option<Agent> {
    let facts = NodeFacts::of_lease(lease);
    Some(Agent {
        node: node_of_lease(lease.metadata.name.as_deref()?)?.to_owned(),
        namespace: lease.namespace().unwrap_or_default(),
        is_alive: is_fresh(lease, &Time(now)),
        disks: facts.as_ref().and_then(|facts| facts.disks),
        unreadable: facts.and_then(|facts| facts.unreadable_disks),
    })
}

async fn kinds(client: &Client) -> Result<Vec<Kind>, ClusterError> {
    let definitions: Api<Guarded<CustomResourceDefinition>> = Api::all(client.clone());
    let mut found = all(&definitions).await?;
    found.retain(|one| one.spec.group == crds::GROUP);
    // Its annotation keeps machines from being created.
    found.sort_by_key(|one| one.spec.names.plural != "virtualmachines");
    let kind = |one: CustomResourceDefinition| Kind {
        name: one.name_any(),
        is_going: one.metadata.deletion_timestamp.is_some(),
        is_allowed: permission::is_given(&one),
    };
    Ok(found.into_iter().map(kind).collect())
}

/// All objects, page by page.
async fn all<K>(api: &Api<Guarded<K>>) -> Result<Vec<K>, ClusterError>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let mut found = Vec::new();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = api.list(&page).await.map_err(ClusterError::from_api)?;
        for object in list.items {
            found.push(listed::required(object)?);
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page.continue_token = Some(token),
            None => return Ok(found),
        }
    }
}
