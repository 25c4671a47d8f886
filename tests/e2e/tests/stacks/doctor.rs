//! What a node says of itself, by the node API and by `vmletctl doctor`, with the real libvirt.
//!
//! Invariant: both say the same.
//! Failure: what was said.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Stack, eventually, program};
use nix::sys::signal::Signal;
use nodeapi::v1::host::Readiness;
use nodeapi::v1::{InfoRequest, InfoResponse};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(120);

#[tokio::test]
#[ignore = "needs root"]
async fn the_doctor_and_the_node_api_say_the_same() -> Result<()> {
    let stack = Stack::up()?;
    let info = await_info(&stack, "all of the node", |info| {
        let host = info.host.as_ref();
        host.is_some_and(|host| !host.cpu_models.is_empty() && host.kernel.is_some())
    })
    .await?;
    let host = info.host.context("no host")?;
    let readiness = host.readiness();
    ensure!(
        matches!(readiness, Readiness::Ready | Readiness::Limited),
        "{host:?}"
    );
    ensure!(!info.machine_types.is_empty());
    let report = doctor(&stack)?;
    ensure!(report["apiVersion"] == "doctor.vmlet.dev/v1", "{report}");
    let node = &report["node"];
    ensure!(node["condition"]["status"] == "True", "{report}");
    ensure!(node["condition"]["reason"] == *host.reason, "{report}");
    ensure!(node["accelerator"] == *info.accelerator, "{report}");
    ensure!(node["machineTypes"] == serde_json::to_value(&info.machine_types)?);
    ensure!(node["cpuModels"] == serde_json::to_value(&host.cpu_models)?);
    let kernel = host.kernel.context("no kernel")?;
    ensure!(node["kernel"]["landlockAbi"] == kernel.landlock_abi);
    ensure!(node["disks"]["shareBlocks"].is_boolean(), "{report}");

    stack.kill("libvirtd", Signal::SIGKILL).await?;
    let info = await_info(&stack, "a node without libvirt", |info| {
        let host = info.host.as_ref();
        host.is_some_and(|host| host.readiness() == Readiness::NotReady)
    })
    .await?;
    let down = info.host.context("no host")?;
    ensure!(down.reason == "HypervisorUnavailable", "{down:?}");
    ensure!(
        down.cpu_models == host.cpu_models,
        "what it had stays known"
    );
    let report = doctor(&stack)?;
    ensure!(report["passed"] == false, "{report}");
    ensure!(report["node"]["condition"]["status"] == "False", "{report}");
    stack.restart("libvirtd")?;
    await_info(&stack, "libvirt again", |info| {
        let host = info.host.as_ref();
        host.is_some_and(|host| host.readiness() == readiness)
    })
    .await?;
    stack.down()
}

async fn await_info(
    stack: &Stack,
    what: &str,
    is_wanted: impl Fn(&InfoResponse) -> bool,
) -> Result<InfoResponse> {
    eventually(SOON, what, || async {
        let mut node = stack.node().await?.node;
        let info = node.info(InfoRequest {}).await?.into_inner();
        ensure!(is_wanted(&info), "{info:?}");
        Ok(info)
    })
    .await
}

fn doctor(stack: &Stack) -> Result<Value> {
    let vmletctl = stack.dir().join("bin/vmletctl");
    let vmletctl = vmletctl.to_str().context("a path of text")?;
    let output = program::output(stack.command(vmletctl).args(["doctor", "--json"]))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    serde_json::from_str(&text).with_context(|| format!("{output:?}"))
}
