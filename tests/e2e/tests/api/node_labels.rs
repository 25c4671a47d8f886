//! Labels and the condition of a Node, by the daemon that its agent asks.
//!
//! Invariant: the agent has the rights of `deploy/agent`; its policy is in force.
//! Failure: the labels and the condition of the Node, and the agent's log.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::names::NODE_READY;
use e2e::{Agent, Control, NodeServer, eventually};
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use nodeapi::v1::host::Readiness;
use nodeapi::v1::{Host, Kernel};
use serde_json::{Value, json};

use super::agent_facts::{client_of, refused};

const SOON: Duration = Duration::from_secs(120);

#[tokio::test]
#[ignore = "needs root"]
async fn a_node_says_what_it_has_for_machines_and_what_it_lacks() -> Result<()> {
    let control = Control::up().await?;
    let scratch = tempfile::tempdir()?;
    let mut agent = Agent::prepare(&control, scratch.path(), "n1").await?;
    let mut daemon = NodeServer::new(&agent.node_socket());
    daemon.set_info(|info| {
        info.accelerator = "kvm".to_owned();
        info.machine_types = ["pc-q35-7.1", "pc-q35-7.2"].map(str::to_owned).to_vec();
        info.host = Some(host(
            Readiness::Limited,
            "LandlockMissing",
            &["EPYC", "no label"],
        ));
    });
    daemon.start()?;
    let nodes: Api<Node> = Api::all(control.client()?);
    let own = json!({ "metadata": { "labels": { "other": "x", "vmlet.dev/node": "true" } } });
    let own = Patch::Merge(own);
    let node = nodes.patch("n1", &PatchParams::default(), &own).await?;
    let before = node.labels().clone();
    agent.start()?;

    let mut expected = before.clone();
    expected.extend(labels(&[
        ("node.vmlet.dev/accelerator", "kvm"),
        ("node.vmlet.dev/cgroup-version", "2"),
        ("node.vmlet.dev/uefi", "true"),
        ("machine-type.node.vmlet.dev/pc-q35-7.1", "true"),
        ("machine-type.node.vmlet.dev/pc-q35-7.2", "true"),
        ("cpu-model.node.vmlet.dev/EPYC", "true"),
    ]));
    await_labels(&nodes, &expected, &agent).await?;
    let limited = await_condition(&nodes, "True", "LandlockMissing").await?;

    // Another QEMU, and a libvirt that no longer answers.
    daemon.set_info(|info| {
        info.machine_types = vec!["pc-q35-10.0".to_owned()];
        info.host = Some(host(
            Readiness::NotReady,
            "HypervisorUnavailable",
            &["EPYC"],
        ));
    });
    expected.remove("machine-type.node.vmlet.dev/pc-q35-7.1");
    expected.remove("machine-type.node.vmlet.dev/pc-q35-7.2");
    let newest = "machine-type.node.vmlet.dev/pc-q35-10.0";
    expected.insert(newest.to_owned(), "true".to_owned());
    await_labels(&nodes, &expected, &agent).await?;
    let down = await_condition(&nodes, "False", "HypervisorUnavailable").await?;
    let since = limited.last_transition_time;
    ensure!(down.last_transition_time > since, "{down:?}");

    // Labels say what the node has, also while the daemon is away.
    daemon.stop()?;
    let away = await_condition(&nodes, "False", "DaemonUnavailable").await?;
    let since = down.last_transition_time;
    ensure!(away.last_transition_time == since, "{away:?}");
    ensure!(*nodes.get("n1").await?.labels() == expected);
    agent.kill()?;
    control.down()
}

/// What an agent that an attacker has taken over may not do to the objects that all clients watch.
#[tokio::test]
#[ignore = "needs root"]
async fn an_agent_writes_one_bounded_condition_and_leaves_the_others_in_their_order() -> Result<()>
{
    let control = Control::up().await?;
    let scratch = tempfile::tempdir()?;
    let agent = Agent::prepare(&control, scratch.path(), "n1").await?;
    let params = PatchParams::default();
    let conditions = |conditions: &[Value]| json!({ "status": { "conditions": conditions } });
    let of = |kind: &str, status: &str| json!({ "type": kind, "status": status });
    let ready = of("Ready", "True");
    let disk = of("DiskPressure", "False");
    let own = of(NODE_READY, "True");
    let found = [ready.clone(), disk.clone()];
    let administrator: Api<Node> = Api::all(control.client()?);
    let found = Patch::Merge(conditions(&found));
    administrator.patch_status("n1", &params, &found).await?;

    let nodes: Api<Node> = Api::all(client_of(&agent).await?);
    let only = "the condition VmletReady only";
    let once = "one condition VmletReady, with";
    let long = |key: &str, length: usize| json!({ "type": NODE_READY, "status": "True", key: "x".repeat(length) });
    for (listed, words) in [
        (vec![ready.clone(), disk.clone(), own.clone()], None),
        (vec![own.clone(), ready.clone(), disk.clone()], None),
        (vec![disk.clone(), ready.clone(), own.clone()], Some(only)),
        (vec![ready.clone(), ready.clone(), disk.clone()], Some(only)),
        (vec![ready.clone(), own.clone()], Some(only)),
        (
            vec![ready.clone(), disk.clone(), own.clone(), own],
            Some(once),
        ),
        (
            vec![ready.clone(), disk.clone(), long("message", 1024)],
            None,
        ),
        (
            vec![ready.clone(), disk.clone(), long("message", 1025)],
            Some(once),
        ),
        (vec![ready, disk, long("reason", 65)], Some(once)),
    ] {
        let change = Patch::Merge(conditions(&listed));
        let answer = nodes.patch_status("n1", &params, &change).await;
        match words {
            None => drop(answer.with_context(|| format!("{listed:?}"))?),
            Some(words) => refused(&format!("{listed:?}"), answer, words)?,
        }
    }
    let labels: BTreeMap<_, _> = (0..257)
        .map(|n| (format!("cpu-model.node.vmlet.dev/m{n}"), "true"))
        .collect();
    let change = Patch::Merge(json!({ "metadata": { "labels": labels } }));
    let answer = nodes.patch("n1", &params, &change).await;
    refused("257 labels", answer, "at most 256 labels")?;
    control.down()
}

fn host(readiness: Readiness, reason: &str, models: &[&str]) -> Host {
    Host {
        readiness: readiness.into(),
        reason: reason.to_owned(),
        message: "a sentence".to_owned(),
        kernel: Some(Kernel {
            cgroup_version: 2,
            app_armor: "unknown".to_owned(),
            ..Kernel::default()
        }),
        cpu_models: models.iter().map(ToString::to_string).collect(),
        uefi: Some(true),
    }
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(pair).collect()
}

async fn await_labels(
    nodes: &Api<Node>,
    expected: &BTreeMap<String, String>,
    agent: &Agent,
) -> Result<()> {
    eventually(SOON, "labels of the Node", || async {
        let node = nodes.get("n1").await?;
        let found = node.labels();
        let log = agent.log();
        ensure!(found == expected, "{found:?}, not {expected:?}\n{log}");
        Ok(())
    })
    .await
}

async fn await_condition(nodes: &Api<Node>, status: &str, reason: &str) -> Result<NodeCondition> {
    eventually(SOON, "the condition of the Node", || async {
        let node = nodes.get("n1").await?.status.unwrap_or_default();
        let mut conditions = node.conditions.unwrap_or_default().into_iter();
        let found = conditions.find(|c| c.type_ == NODE_READY);
        let found = found.context("no condition")?;
        let is_so = found.status == status && found.reason.as_deref() == Some(reason);
        ensure!(is_so, "{found:?}");
        Ok(found)
    })
    .await
}
