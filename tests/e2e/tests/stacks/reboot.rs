//! A reboot of the node, as far as it can be had without one: every process is killed, what is on
//! a tmpfs no longer exists, and the node reports that this is another boot.
//!
//! Invariant: the same pod runs again in its next attempt, as kubelet makes it, and nothing of the
//! first one is left when kubelet has removed it.
//! Failure: the phase, the exit or the leftover that was found.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{PodOptions, Stack, await_text, eventually, v1};

const BOOT: Duration = Duration::from_secs(180);

#[tokio::test]
#[ignore = "needs root"]
async fn after_a_reboot_the_pod_comes_back_and_nothing_is_orphaned() -> Result<()> {
    let stack = Stack::up()?;
    let cri = stack.cri().await?;
    let image = cri.await_image(&stack).await?;
    let pod = PodOptions::named("phoenix", &stack);
    let (sandbox, container) = cri.boot(&pod, &image).await?;
    await_text(&pod.log(0), "VMLET-GUEST-READY", BOOT).await?;
    let waiting = PodOptions::named("waiting", &stack);
    let idle = cri.run(waiting.sandbox()).await?;
    let created = Box::pin(cri.create(&idle, waiting.container(&image, 0), waiting.sandbox()));
    let created = created.await?;

    stack.end_all().await?;
    stack.begin_boot()?;

    // Before libvirt or networks are available, kubelet gets the true status.
    stack.restart("vmlet")?;
    let cri = stack.cri().await?;
    let status = cri.container(&container).await?;
    ensure!(
        status.state == v1::ContainerState::ContainerExited as i32,
        "{status:?}"
    );
    ensure!(
        (status.exit_code, status.reason.as_str()) == (255, "Unknown"),
        "{status:?}"
    );
    let status = cri.container(&created).await?;
    ensure!(
        status.state == v1::ContainerState::ContainerCreated as i32,
        "{status:?}"
    );
    for id in [&sandbox, &idle] {
        let status = cri.sandbox(id).await?;
        ensure!(
            status.state == v1::PodSandboxState::SandboxNotready as i32,
            "{status:?}"
        );
        ensure!(status.network.is_none_or(|n| n.ip.is_empty()));
    }
    for program in ["libvirtd", "vmlet-tapmanager"] {
        stack.restart(program)?;
    }
    cri.await_ready().await?;

    // kubelet's next attempt for the same pod.
    let mut again = pod.sandbox();
    if let Some(metadata) = again.metadata.as_mut() {
        metadata.attempt = 1;
    }
    let second = cri.run(again.clone()).await?;
    ensure!(second != sandbox, "the same sandbox again");
    let restarted = Box::pin(cri.create(&second, pod.container(&image, 1), again)).await?;
    cri.start(&restarted).await?;
    await_text(&pod.log(1), "VMLET-GUEST-READY", BOOT).await?;
    let page = format!("http://{}/", cri.ip(&second).await?);
    stack.fetch(&page, BOOT).await?;
    // libvirt's record of the first machine is removed at the next look at all of them.
    eventually(BOOT, "one domain", || async {
        let domains = stack.domains()?;
        ensure!(domains.len() == 1, "{domains:?}");
        Ok(())
    })
    .await?;

    for id in [&sandbox, &idle, &second] {
        eventually(BOOT, "a removal", || async {
            cri.stop_pod(id).await?;
            Ok(cri.remove_pod(id).await?)
        })
        .await?;
    }
    stack.await_clean().await?;
    stack.down()
}
