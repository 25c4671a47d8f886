//! `list --watch`: a line whenever what it says about a machine changes.
//!
//! Invariant: each machine that is there when the watch begins is printed once; then only changes
//! are. An object that cannot be read ends no watch: a machine is a line with the reason, a task or a pod
//! stays as it was.
//! Failure: a watch that breaks is begun again by itself; the first list must succeed.

use std::collections::{BTreeSet, HashMap};
use std::pin::pin;

use crds::guard::Guarded;
use crds::names::VM_UID_LABEL;
use crds::{VirtualMachine, VirtualMachineTask};
use futures_util::{Stream, StreamExt, TryStreamExt, future, stream};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams};
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::{Resource, ResourceExt};

use super::row::{Columns, Row, table};
use super::{Around, ListArgs, progress};
use crate::cluster::{Cluster, ClusterArgs, ClusterError, innermost};
use crate::table::Table;

type Key = (String, String);

#[allow(
    clippy::large_enum_variant,
    reason = "one at a time, taken apart at once"
)]
pub(in crate::commands) enum Change {
    Machine(Event<Guarded<VirtualMachine>>),
    Task(Event<VirtualMachineTask>),
    Pod(Event<Pod>),
}

pub(super) async fn run(
    cluster: &Cluster,
    args: &ListArgs,
    columns: Columns,
) -> anyhow::Result<()> {
    let all = args.all_namespaces;
    let config = Config {
        label_selector: args.selector.clone(),
        field_selector: args.field_selector.clone(),
        ..Config::default()
    };
    first_answer(&cluster.api_of(all), &config, &args.cluster).await?;
    let mut changes = pin!(changes(cluster, all, config));
    let mut screen = Screen::new(columns, args.color.is_on());
    super::super::print(&screen.table.header())?;
    while let Some(change) = changes.next().await {
        match change {
            Ok(change) => super::super::print(&screen.take(change))?,
            Err(error) => report(&error).await,
        }
    }
    Ok(())
}

/// A watch would retry what can never succeed; the first response shows that.
pub(in crate::commands) async fn first_answer(
    machines: &Api<Guarded<VirtualMachine>>,
    config: &Config,
    args: &ClusterArgs,
) -> Result<(), ClusterError> {
    let first = ListParams {
        limit: Some(1),
        label_selector: config.label_selector.clone(),
        field_selector: config.field_selector.clone(),
        ..ListParams::default()
    };
    let answer = machines.list(&first);
    let listed = match args.request_timeout.0 {
        Some(deadline) => tokio::time::timeout(deadline, answer)
            .await
            .map_err(|_| ClusterError::Unreachable(format!("no answer in {deadline:?}")))?,
        None => answer.await,
    };
    listed.map(drop).map_err(ClusterError::from_api)
}

/// The changes of machines, their tasks and their pods, beginning with all that there are.
pub(in crate::commands) fn changes(
    cluster: &Cluster,
    all: bool,
    machines: Config,
) -> impl Stream<Item = Result<Change, watcher::Error>> + use<> {
    let ours = Config::default().labels(VM_UID_LABEL);
    let of_machines: Api<Guarded<VirtualMachine>> = cluster.api_of(all);
    let of_machines = watcher(of_machines, machines).map(|e| e.map(Change::Machine));
    let of_tasks = watcher(cluster.api_of(all), Config::default());
    let of_tasks = of_tasks.try_filter_map(|e| future::ok(readable(e).map(Change::Task)));
    let of_pods = watcher(cluster.api_of(all), ours);
    let of_pods = of_pods.try_filter_map(|e| future::ok(readable(e).map(Change::Pod)));
    stream::select(of_machines, stream::select(of_tasks, of_pods))
}

/// The event without an object that cannot be read.
fn readable<K>(event: Event<Guarded<K>>) -> Option<Event<K>> {
    match event {
        Event::Init => Some(Event::Init),
        Event::InitDone => Some(Event::InitDone),
        Event::InitApply(object) => object.0.ok().map(Event::InitApply),
        Event::Apply(object) => object.0.ok().map(Event::Apply),
        Event::Delete(object) => object.0.ok().map(Event::Delete),
    }
}

/// The library's own text of an answer is its debug form.
fn broken(error: &watcher::Error) -> String {
    let why = innermost(error);
    format!("the watch broke off and is begun again: {why}")
}

/// The watch continues by itself; a user who waits is to know why nothing comes.
pub(in crate::commands) async fn report(error: &watcher::Error) {
    eprintln!("warning: {}", broken(error));
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
}

/// What was seen, and what was printed.
pub(in crate::commands) struct Screen {
    /// Names of the machines that are printed; none: all of them.
    names: Option<BTreeSet<String>>,
    columns: Columns,
    coloured: bool,
    table: Table,
    machines: HashMap<Key, Guarded<VirtualMachine>>,
    tasks: HashMap<Key, VirtualMachineTask>,
    pods: HashMap<Key, Pod>,
    printed: HashMap<Key, Row>,
}

fn key(object: &impl ResourceExt) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

impl Screen {
    fn new(columns: Columns, coloured: bool) -> Self {
        let mut table = table(columns);
        // Lines come one by one; usual values should not move the columns.
        table.measure(&Row::usual().cells(columns));
        Self {
            names: None,
            columns,
            coloured,
            table,
            machines: HashMap::new(),
            tasks: HashMap::new(),
            pods: HashMap::new(),
            printed: HashMap::new(),
        }
    }

    /// Prints these machines of one namespace only.
    pub(in crate::commands) fn of_machines(names: BTreeSet<String>, coloured: bool) -> Self {
        let columns = Columns {
            progress: true,
            ..Columns::default()
        };
        Self {
            names: Some(names),
            ..Self::new(columns, coloured)
        }
    }

    pub(in crate::commands) fn header(&self) -> String {
        self.table.header()
    }

    /// Takes a change over; the lines that it makes.
    pub(in crate::commands) fn take(&mut self, change: Change) -> String {
        let touched = match change {
            Change::Machine(Event::Apply(vm) | Event::InitApply(vm))
                if self.is_left_out(&vm.name_any()) =>
            {
                None
            }
            Change::Machine(Event::Apply(vm) | Event::InitApply(vm)) => {
                let key = key(&vm);
                self.machines.insert(key.clone(), vm);
                Some(key)
            }
            Change::Machine(Event::Delete(vm)) => return self.gone(&key(&vm)),
            Change::Task(event) => store(&mut self.tasks, event)
                .map(|task| (task.namespace().unwrap_or_default(), task.spec.vm_name)),
            Change::Pod(event) => store(&mut self.pods, event).and_then(|pod| self.owner(&pod)),
            Change::Machine(Event::Init | Event::InitDone) => None,
        };
        touched.map(|key| self.line(&key)).unwrap_or_default()
    }

    fn is_left_out(&self, name: &str) -> bool {
        let names = self.names.as_ref();
        names.is_some_and(|names| !names.contains(name))
    }

    fn owner(&self, pod: &Pod) -> Option<Key> {
        let uid = pod.labels().get(VM_UID_LABEL)?;
        let found = self
            .machines
            .iter()
            .find(|(_, vm)| vm.meta().uid.as_ref() == Some(uid));
        found.map(|(key, _)| key.clone())
    }

    fn line(&mut self, key: &Key) -> String {
        let Some(known) = self.machines.get(key) else {
            return String::new();
        };
        let now = Timestamp::now();
        let row = match &known.0 {
            Ok(vm) => Row::for_machine(vm, progress(vm, &self.around(vm), now), now),
            Err(unreadable) => Row::unreadable(unreadable, now),
        };
        if self
            .printed
            .get(key)
            .is_some_and(|old| old.says_the_same(&row))
        {
            return String::new();
        }
        self.table.measure(&row.cells(self.columns));
        let line = row.line(&self.table, self.columns, self.coloured);
        self.printed.insert(key.clone(), row);
        line
    }

    fn around(&self, vm: &VirtualMachine) -> Around {
        let uid = vm.metadata.uid.clone().unwrap_or_default();
        let tasks = self.tasks.values().filter(|t| t.spec.vm_uid == uid);
        let pods = self
            .pods
            .values()
            .filter(|p| p.labels().get(VM_UID_LABEL) == Some(&uid));
        Around {
            tasks: tasks.cloned().collect(),
            pods: pods.cloned().collect(),
        }
    }

    fn gone(&mut self, key: &Key) -> String {
        self.machines.remove(key);
        let Some(row) = self.printed.remove(key) else {
            return String::new();
        };
        row.gone().line(&self.table, self.columns, self.coloured)
    }
}

/// Keeps the newest state; the object that changed.
fn store<K: ResourceExt + Clone>(all: &mut HashMap<Key, K>, event: Event<K>) -> Option<K> {
    match event {
        Event::Apply(object) | Event::InitApply(object) => {
            all.insert(key(&object), object.clone());
            Some(object)
        }
        Event::Delete(object) => {
            all.remove(&key(&object));
            Some(object)
        }
        Event::Init => {
            all.clear();
            None
        }
        Event::InitDone => None,
    }
}

#[cfg(test)]
mod tests;
