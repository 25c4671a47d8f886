//! The agent's reports about machines and its node, and the limits of its rights.
//!
//! Invariant: pods and nodes are objects without a kubelet; the agent has the rights of
//! `deploy/agent`.
//! Failure: the agent's log is shown.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::guest_facts::{AgentState, GuestFacts, Power};
use crds::names;
use crds::node_facts::{NodeFacts, is_fresh};
use e2e::{Agent, Control, always, eventually};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt};
use nodeapi::v1::{Interface, Machine, interface, machine};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(120);
/// Two renewals, and what garbage collection takes.
const COLLECTED: Duration = Duration::from_secs(300);

fn pod_manifest(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default", "labels": { "app": name } },
        "spec": { "nodeName": node, "containers": [{ "name": "vm", "image": "vmlet.dev/hello" }] },
    })
}

fn machine_of(pod: &Pod) -> Machine {
    Machine {
        pod_namespace: pod.namespace().unwrap_or_default(),
        pod_name: pod.name_any(),
        pod_uid: pod.uid().unwrap_or_default(),
        container_id: "c1".to_owned(),
        power: machine::Power::On.into(),
        agent: nodeapi::v1::Agent::NoInfo.into(),
        ..Machine::default()
    }
}

fn facts_of(pod: &Pod) -> Result<GuestFacts> {
    let text = pod.annotations().get(names::GUEST_FACTS);
    Ok(GuestFacts::from_json(text.context("no facts")?)?)
}

fn condition(pod: &Pod, kind: &str) -> Option<(String, Option<Time>)> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|c| c.type_ == kind)?;
    Some((found.status.clone(), found.last_transition_time.clone()))
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_pod_carries_guest_facts_and_repeats_cause_no_write() -> Result<()> {
    let control = Control::up().await?;
    let scratch = tempfile::tempdir()?;
    let (mut agent, mut daemon) = Agent::beside_daemon(&control, scratch.path(), "n1").await?;
    control.cluster().apply(&pod_manifest("vm", "n1"))?;
    let pods: Api<Pod> = Api::namespaced(control.client()?, "default");
    let pod = pods.get("vm").await?;
    let mut machine = machine_of(&pod);
    daemon.set_machine(&machine);
    agent.start()?;
    let says = |wanted: Power| {
        let pods = &pods;
        async move {
            eventually(SOON, &format!("{wanted:?}"), || async {
                let pod = pods.get("vm").await?;
                let facts = facts_of(&pod)?;
                ensure!(facts.power == wanted, "{facts:?}");
                Ok(pod)
            })
            .await
        }
    };
    let on = says(Power::On).await?;
    ensure!(on.labels()["app"] == "vm", "labels stay");
    let (network, _) = condition(&on, "vmlet.dev/GuestNetworkReady").context("no condition")?;
    ensure!(network == "False", "{network}");

    // What the guest does not get is an event, once.
    machine.unsupported = vec!["the mount /data does not reach the guest".to_owned()];
    daemon.set_machine(&machine);
    let events: Api<Event> = Api::namespaced(control.client()?, "default");
    let of_agent = ListParams::default().fields("reason=Unsupported");
    eventually(SOON, "an event", || async {
        let found = events.list(&of_agent).await?.items;
        always(found.len() <= 1, || format!("several events: {found:?}"))?;
        ensure!(found.len() == 1, "{found:?}");
        let pod_uid = found[0].regarding.as_ref().and_then(|r| r.uid.clone());
        ensure!(pod_uid == pod.uid(), "{found:?}");
        Ok(())
    })
    .await?;

    // The guest reports its facts, then repeats them.
    machine.agent = nodeapi::v1::Agent::Connected.into();
    machine.host_name = "vm-1".to_owned();
    machine.interfaces = vec![Interface {
        name: "eth0".to_owned(),
        mac: "02:00:00:00:00:01".to_owned(),
        addresses: vec!["10.88.1.7/24".to_owned()],
        source: interface::Source::GuestAgent.into(),
    }];
    daemon.set_machine(&machine);
    let reported = eventually(SOON, "addresses", || async {
        let pod = pods.get("vm").await?;
        let facts = facts_of(&pod)?;
        ensure!(facts.agent == AgentState::Connected, "{facts:?}");
        ensure!(facts.usable_addresses().count() == 1, "{facts:?}");
        Ok(pod)
    })
    .await?;
    let (network, since) = condition(&reported, "vmlet.dev/GuestNetworkReady").context("none")?;
    ensure!(network == "True", "{network}");
    for _ in 0..50 {
        daemon.set_machine(&machine);
    }
    // A restart of either side changes nothing either.
    agent.kill()?;
    agent.start()?;
    daemon.stop()?;
    daemon.start()?;
    machine.power = machine::Power::Paused.into();
    machine.pause_reason = "PausedByUser".to_owned();
    daemon.set_machine(&machine);
    let paused = says(Power::Paused).await?;
    let writes = |pod: &Pod| pod.resource_version();
    let (now, _) = condition(&paused, "vmlet.dev/Paused").context("none")?;
    ensure!(now == "True", "{now}");
    let found = events.list(&of_agent).await?.items;
    ensure!(found.len() == 1, "again after a restart: {found:?}");
    let (_, still) = condition(&paused, "vmlet.dev/GuestNetworkReady").context("none")?;
    ensure!(
        still == since,
        "the time of a condition that did not change: {still:?} {since:?}"
    );
    ensure!(writes(&reported) != writes(&paused));
    let metrics = agent.log().matches("guest facts").count();
    ensure!(metrics == 0, "failures were logged");
    agent.kill()?;
    control.down()
}

#[tokio::test]
#[ignore = "needs root"]
async fn the_lease_of_a_node_is_renewed_and_reports_a_stopped_daemon() -> Result<()> {
    let control = Control::up().await?;
    let scratch = tempfile::tempdir()?;
    let (mut agent, mut daemon) = Agent::beside_daemon(&control, scratch.path(), "n1").await?;
    agent.start()?;
    let leases: Api<Lease> = Api::namespaced(control.client()?, names::NAMESPACE);
    let facts = |reachable: bool| {
        let leases = &leases;
        async move {
            eventually(SOON, "the lease", || async {
                let lease = leases.get("vmlet-node-n1").await?;
                ensure!(is_fresh(&lease, &Time(Timestamp::now())), "{lease:?}");
                let facts = NodeFacts::of_lease(&lease).context("no facts")?;
                ensure!(facts.daemon.reachable == reachable, "{facts:?}");
                Ok(facts)
            })
            .await
        }
    };
    let reported = facts(true).await?;
    ensure!(reported.daemon.version == "9.9.9", "{reported:?}");
    ensure!(
        reported
            .daemon
            .task_kinds
            .contains(&"DeleteDisk".to_owned()),
        "{reported:?}"
    );
    ensure!(
        !reported.boot_id.is_empty() && reported.proxy.is_none(),
        "{reported:?}"
    );
    daemon.stop()?;
    let reported = facts(false).await?;
    ensure!(
        !reported.daemon.message.is_empty() && reported.daemon.version == "9.9.9",
        "{reported:?}"
    );
    agent.kill()?;
    control.down()
}

/// A client with an agent's token.
#[tokio::test]
#[ignore = "needs root"]
async fn the_lease_of_a_node_goes_with_its_node_and_comes_back_with_the_next_one() -> Result<()> {
    let control = Control::up().await?;
    control.start_controller_manager()?;
    let scratch = tempfile::tempdir()?;
    let mut agent = Agent::prepare(&control, scratch.path(), "n1").await?;
    agent.start()?;
    let client = control.client()?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), names::NAMESPACE);
    let nodes: Api<Node> = Api::all(client);
    let owned = || {
        let leases = &leases;
        let nodes = &nodes;
        async move {
            eventually(COLLECTED, "a lease that its Node owns", || async {
                let node = nodes.get("n1").await?;
                let lease = leases.get("vmlet-node-n1").await?;
                let owners = lease.owner_references();
                always(owners.len() <= 1, || format!("several owners: {owners:?}"))?;
                ensure!(
                    owners.len() == 1
                        && owners[0].kind == "Node"
                        && Some(&owners[0].uid) == node.uid().as_ref(),
                    "{owners:?}, not {:?}",
                    node.uid()
                );
                Ok(())
            })
            .await
        }
    };
    owned().await?;

    // With the Node its agents' tokens end, too.
    nodes.delete("n1", &DeleteParams::default()).await?;
    eventually(COLLECTED, "no lease without a Node", || async {
        let lease = leases.get_opt("vmlet-node-n1").await?;
        ensure!(lease.is_none(), "{lease:?}");
        Ok(())
    })
    .await?;
    agent.kill()?;

    // The next Node of that name owns the next lease.
    let scratch = tempfile::tempdir()?;
    let mut agent = Agent::prepare(&control, scratch.path(), "n1").await?;
    agent.start()?;
    owned().await?;
    agent.kill()?;
    control.down()
}

pub(super) async fn client_of(agent: &Agent) -> Result<Client> {
    let file = Kubeconfig::read_from(agent.dir().join("kubeconfig"))?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

pub(super) fn refused<T>(what: &str, answer: kube::Result<T>, words: &str) -> Result<()> {
    let error = answer.err().with_context(|| format!("{what} is allowed"))?;
    ensure!(error.to_string().contains(words), "{what}: {error}");
    Ok(())
}

#[tokio::test]
#[ignore = "needs root"]
async fn the_agent_of_one_node_can_do_nothing_to_another_one() -> Result<()> {
    let control = Control::up().await?;
    let scratch = tempfile::tempdir()?;
    let agent = Agent::prepare(&control, scratch.path(), "n1").await?;
    let cluster = control.cluster();
    cluster.apply(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n2" } }))?;
    for (name, node) in [("mine", "n1"), ("theirs", "n2")] {
        cluster.apply(&pod_manifest(name, node))?;
        cluster.apply(&json!({
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineTask",
            "metadata": { "name": name, "namespace": "default" },
            "spec": { "nodeName": node, "vmName": "vm", "vmUID": "0f0f0f0f-0000-4000-8000-000000000001", "kind": "Reset" },
        }))?;
    }
    let client = client_of(&agent).await?;
    let apply = PatchParams::apply("vmlet-agent").force();

    let tasks: Api<crds::VirtualMachineTask> = Api::namespaced(client.clone(), "default");
    let status = |name: &str| {
        Patch::Apply(json!({
            "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineTask",
            "metadata": { "name": name }, "status": { "state": "Success" },
        }))
    };
    tasks.patch_status("mine", &apply, &status("mine")).await?;
    let answer = tasks
        .patch_status("theirs", &apply, &status("theirs"))
        .await;
    refused("another node's task", answer, "tasks of its own node only")?;
    let answer = tasks.delete("theirs", &DeleteParams::default()).await;
    refused(
        "deleting another node's task",
        answer.map(drop),
        "tasks of its own node only",
    )?;
    tasks.delete("mine", &DeleteParams::default()).await?;

    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod = |name: &str, more: Value| {
        let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name } });
        merge(&mut pod, more);
        Patch::Apply(pod)
    };
    let facts = || json!({ "metadata": { "annotations": { "vmlet.dev/guest-facts": "{}" } } });
    let condition =
        |kind: &str| json!({ "status": { "conditions": [{ "type": kind, "status": "True" }] } });
    pods.patch_status("mine", &apply, &pod("mine", facts()))
        .await?;
    let ours = condition("vmlet.dev/Paused");
    pods.patch_status("mine", &apply, &pod("mine", ours))
        .await?;
    let own_node = "pods of its own node only";
    let metadata = "of a pod's metadata";
    let of_status = "of a pod's status";
    for (name, more, words) in [
        ("theirs", facts(), own_node),
        ("theirs", condition("vmlet.dev/Paused"), own_node),
        ("mine", condition("Ready"), of_status),
        (
            "mine",
            json!({ "status": { "phase": "Failed" } }),
            of_status,
        ),
        (
            "mine",
            json!({ "status": { "podIPs": [{ "ip": "10.0.0.1" }] } }),
            of_status,
        ),
        (
            "mine",
            json!({ "metadata": { "annotations": { "other": "x" } } }),
            metadata,
        ),
        (
            "mine",
            json!({ "metadata": { "labels": { "app": "database" } } }),
            metadata,
        ),
    ] {
        let what = format!("{name} {more}");
        let answer = pods.patch_status(name, &apply, &pod(name, more)).await;
        refused(&what, answer, words)?;
    }
    let nodes: Api<Node> = Api::all(client.clone());
    let merging = PatchParams::default();
    let own = "metadata and status of its own node only";
    let of_node = "of a node an agent writes";
    let of_labels = "of a node's labels an agent writes";
    let note = |key: &str, value: &str| json!({ "metadata": { "annotations": { key: value } } });
    let label = |key: &str| json!({ "metadata": { "labels": { key: "true" } } });
    for (name, change, words) in [
        ("n1", note(names::DO_NOT_DISRUPT, "true"), None),
        ("n1", note(names::KEPT_FROM_AUTOSCALERS, "x"), None),
        ("n2", note(names::DO_NOT_DISRUPT, "true"), Some(own)),
        ("n1", note(names::DO_NOT_DISRUPT, "false"), Some(of_node)),
        ("n1", note("other", "true"), Some(of_node)),
        ("n1", label("node.vmlet.dev/accelerator"), None),
        ("n1", label("cpu-model.node.vmlet.dev/EPYC"), None),
        ("n1", label("machine-type.node.vmlet.dev/pc-q35-7.2"), None),
        ("n2", label("node.vmlet.dev/accelerator"), Some(own)),
        ("n1", label("vmlet.dev/node"), Some(of_labels)),
        ("n1", label("node.vmlet.dev"), Some(of_labels)),
        ("n1", label("evil-node.vmlet.dev/x"), Some(of_labels)),
        (
            "n1",
            json!({ "spec": { "unschedulable": true } }),
            Some(of_node),
        ),
    ] {
        let what = format!("{name} {change}");
        let change = Patch::Merge(change);
        let answer = nodes.patch(name, &merging, &change).await;
        match words {
            None => drop(answer.context(what)?),
            Some(words) => refused(&what, answer, words)?,
        }
    }
    let of_node_status = "of a node's status an agent writes";
    for (name, change, words) in [
        ("n1", condition(names::NODE_READY), None),
        ("n2", condition(names::NODE_READY), Some(own)),
        ("n1", condition("Ready"), Some(of_node_status)),
        (
            "n1",
            json!({ "status": { "phase": "Running" } }),
            Some(of_node_status),
        ),
        (
            "n1",
            json!({ "status": { "capacity": { "vmlet.dev/x": "1" } } }),
            Some(of_node_status),
        ),
        ("n1", label("vmlet.dev/node"), Some(of_labels)),
    ] {
        let what = format!("{name} {change}");
        let change = Patch::Strategic(change);
        let answer = nodes.patch_status(name, &merging, &change).await;
        match words {
            None => drop(answer.context(what)?),
            Some(words) => refused(&what, answer, words)?,
        }
    }
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    let event = |name: &str, by: &str, kind: &str, about: &str| -> Result<Event> {
        Ok(serde_json::from_value(json!({
            "metadata": { "name": name }, "eventTime": "2026-01-01T00:00:00.000000Z",
            "reportingController": "vmlet-agent", "reportingInstance": by,
            "action": "Test", "reason": "Test", "type": "Normal", "note": "x",
            "regarding": { "kind": kind, "name": about, "namespace": if kind == "Pod" { "default" } else { "" } },
        }))?)
    };
    let params = PostParams::default();
    for (name, by, kind, about, is_allowed) in [
        ("of-pod", "n1", "Pod", "mine", true),
        ("of-node", "n1", "Node", "n1", true),
        ("in-its-name", "n2", "Pod", "theirs", false),
        ("in-a-part-of-its-name", "n", "Pod", "mine", false),
        ("of-another-node", "n1", "Node", "n2", false),
        ("of-a-deployment", "n1", "Deployment", "web", false),
    ] {
        let answer = events.create(&params, &event(name, by, kind, about)?).await;
        if is_allowed {
            drop(answer.with_context(|| name.to_owned())?);
        } else {
            refused(name, answer, "an agent creates events")?;
        }
    }
    let again = json!({ "count": 2, "lastObservedTime": "2026-01-01T00:00:00.000000Z" });
    for (field, value) in [
        ("eventTime", json!("9999-12-31T23:59:59.000000Z")),
        ("series", again),
    ] {
        // Our own types have no such time.
        let mut object = serde_json::to_value(event(&field.to_lowercase(), "n1", "Pod", "mine")?)?;
        object[field] = value;
        let request = http::Request::post("/apis/events.k8s.io/v1/namespaces/default/events")
            .header("content-type", "application/json")
            .body(serde_json::to_vec(&object)?)?;
        let answer = client.request::<Value>(request).await;
        refused(field, answer, "an agent's event has one time")?;
    }
    mappings(&control, &client).await?;
    let forbidden = "forbidden";
    let answer = events.delete("of-pod", &DeleteParams::default()).await;
    refused("deleting an event", answer.map(drop), forbidden)?;
    let answer = pods.patch("mine", &apply, &pod("mine", facts())).await;
    refused("a pod itself", answer, forbidden)?;
    let answer = pods.list(&ListParams::default()).await;
    refused("a list of pods", answer, forbidden)?;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), names::NAMESPACE);
    refused(
        "secrets",
        secrets.list(&ListParams::default()).await,
        forbidden,
    )?;

    let leases: Api<Lease> = Api::namespaced(client, names::NAMESPACE);
    for (name, fits) in [
        ("vmlet-node-n1", true),
        ("vmlet-node-n2", false),
        ("vmlet-controller", false),
    ] {
        let lease = Patch::Apply(json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": name }, "spec": { "holderIdentity": "n1" },
        }));
        let answer = leases.patch(name, &apply, &lease).await;
        if fits {
            answer?;
        } else {
            refused(name, answer, "lease of its own node only")?;
        }
    }
    control.down()
}

/// All agents share the condition of an image mapping: none speaks for another node.
async fn mappings(control: &Control, client: &Client) -> Result<()> {
    control.cluster().apply(&json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "ImageMapping", "metadata": { "name": "m" },
        "spec": { "translations": [{ "name": "a", "url": "https://images.example/a.qcow2" }] },
    }))?;
    let of = |client: &Client| Api::<crds::ImageMapping>::all(client.clone());
    let own = of(client);
    let admin = of(&control.client()?);
    let status = |kind: &str, status: &str, message: &str, year: &str, generation: i64| {
        Patch::Merge(
            json!({ "status": { "observedGeneration": generation, "conditions": [{
            "type": kind, "status": status, "reason": "Test", "message": message,
            "lastTransitionTime": format!("{year}-12-31T23:59:59Z"),
        }] } }),
        )
    };
    let merging = PatchParams::default();
    let only = "whether it is Ready, and that it is not in the name of its own node";
    for (change, words) in [
        (status("Ready", "True", "", "2025", 1), None),
        (
            status("Ready", "False", "node n1: no rule", "2025", 1),
            None,
        ),
        (status("Ready", "True", "", "2025", 1), None),
        (
            status("Ready", "False", "node n2: no rule", "2025", 1),
            Some(only),
        ),
        (status("Ready", "Unknown", "", "2025", 1), Some(only)),
        (status("Other", "True", "", "2025", 1), Some(only)),
        (status("Ready", "True", "", "9999", 1), Some("should match")),
        (
            status("Ready", "True", "", "2025", 2),
            Some("not above that of the mapping"),
        ),
    ] {
        let answer = own.patch_status("m", &merging, &change).await;
        match words {
            None => drop(answer.with_context(|| format!("{change:?}"))?),
            Some(words) => refused(&format!("{change:?}"), answer.map(drop), words)?,
        }
    }
    let elsewhere = status("Ready", "False", "node n2: no rule", "2025", 1);
    admin.patch_status("m", &merging, &elsewhere).await?;
    let accepted = status("Ready", "True", "", "2025", 1);
    let answer = own.patch_status("m", &merging, &accepted).await;
    refused(
        "for another node",
        answer.map(drop),
        "that another node refuses",
    )?;
    // The refusal was of another mapping.
    let edit = json!({ "spec": { "prefix": "vmlet.dev" } });
    admin.patch("m", &merging, &Patch::Merge(edit)).await?;
    let accepted = status("Ready", "True", "", "2025", 2);
    own.patch_status("m", &merging, &accepted).await?;
    Ok(())
}

/// Adds the fields of `more`, whose objects win.
fn merge(to: &mut Value, more: Value) {
    match (to, more) {
        (Value::Object(to), Value::Object(more)) => {
            for (key, value) in more {
                merge(to.entry(key).or_insert(Value::Null), value);
            }
        }
        (to, more) => *to = more,
    }
}
