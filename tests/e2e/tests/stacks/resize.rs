//! A running guest gets more virtual CPUs and more memory, and gives them back, also once it was
//! suspended.
//!
//! Invariant: what the guest has is read in the guest; a change that a kill of the daemon interrupted is
//! made after its restart.
//! Failure: what the guest has, beside what was requested.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cri, PodOptions, Stack, await_text, eventually, provision, uid, v1};
use nodeapi::v1::{self as node_v1, run_task_request::Kind};
use serde_json::Value;

const BOOT: Duration = Duration::from_secs(180);
const SOON: Duration = Duration::from_secs(120);
const MIB: i64 = 1 << 20;
const VM: &str = "7b1d2c34-9a0e-4c2b-8f6d-0e1f2a3b4c5d";

#[tokio::test]
#[ignore = "needs root"]
async fn a_guest_gets_more_and_gives_it_back() -> Result<()> {
    let stack = Stack::up()?;
    let cri = stack.cri().await?;
    let image = cri.await_image(&stack).await?;
    let node = stack.node().await?;
    node.done(&uid(1), VM, provision(&image), SOON).await?;
    let pod = machine("grows", &stack, false);
    let (sandbox, container) = cri.boot(&pod, &image).await?;
    await_text(&pod.log(0), "VMLET-GUEST-READY", BOOT).await?;
    cri.await_agent(&container).await?;
    // Under software emulation the guest boots with all CPUs, and the agent takes two off line.
    let first = eventually(SOON, "a guest with one CPU", || async {
        let (cpus, first) = of_guest(&cri, &container).await?;
        ensure!(cpus == 1 && first < 128 * MIB, "{cpus} CPUs, {first} bytes");
        Ok(first)
    })
    .await?;

    update(&cri, &container, 3, 256).await?;
    await_guest(&cri, &container, 3, first + 128 * MIB).await?;
    await_status(&stack, &cri, &container, 3, 256).await?;
    for (cpus, mib, words) in [(4, 256, "vmlet.dev/max-vcpus"), (3, 321, "at most 320 MiB")] {
        let refused = update(&cri, &container, cpus, mib).await.unwrap_err();
        let refused = format!("{refused:#}");
        ensure!(refused.contains(words), "{refused}");
    }

    // Killed before anything happened, and when all has happened and is not recorded.
    for (point, cpus, mib) in [("resize.recorded", 2, 192), ("resize.applied", 3, 320)] {
        stack.arm(point)?;
        update(&cri, &container, cpus, mib).await.unwrap_err();
        ensure!(!stack.is_armed(point), "no request reached {point}");
        stack.restart("vmlet")?;
        cri.await_ready().await?;
        await_status(&stack, &cri, &container, cpus, mib).await?;
        await_guest(&cri, &container, cpus, first + (mib - 128) * MIB).await?;
    }

    update(&cri, &container, 1, 128).await?;
    await_guest(&cri, &container, 1, first).await?;
    await_status(&stack, &cri, &container, 1, 128).await?;
    let log = std::fs::read_to_string(pod.log(0))?;
    ensure!(
        log.contains("VMLET-BOOTS 1") && !log.contains("VMLET-BOOTS 2"),
        "{log}"
    );

    // It is resumed as it was saved, and then gets the size of its new pod.
    update(&cri, &container, 2, 192).await?;
    await_guest(&cri, &container, 2, first + 64 * MIB).await?;
    let save = Kind::Save(node_v1::Save {});
    node.done(&uid(2), VM, save, SOON).await?;
    cri.await_exit(&container, SOON).await?;
    cri.remove_pod(&sandbox).await?;
    let restore = Kind::Restore(node_v1::Restore { discard: false });
    node.done(&uid(3), VM, restore, SOON).await?;
    let pod = machine("resumes", &stack, true);
    let (sandbox, container) = cri.boot(&pod, &image).await?;
    cri.await_agent(&container).await?;
    await_guest(&cri, &container, 1, first).await?;
    let log = std::fs::read_to_string(pod.log(0))?;
    ensure!(!log.contains("VMLET-BOOTS"), "it booted: {log}");
    update(&cri, &container, 3, 256).await?;
    await_guest(&cri, &container, 3, first + 128 * MIB).await?;
    await_status(&stack, &cri, &container, 3, 256).await?;
    cri.remove_pod(&sandbox).await?;

    let delete = Kind::DeleteDisk(node_v1::DeleteDisk {});
    node.done(&uid(4), VM, delete, SOON).await?;
    for task in 1..=4 {
        node.forget(&uid(task)).await?;
    }
    stack.await_clean().await?;
    stack.down()
}

/// A pod of the machine, with room.
fn machine(name: &str, stack: &Stack, restores: bool) -> PodOptions {
    let mut pod = PodOptions::named(name, stack);
    let restores = restores.to_string();
    pod.annotations = [
        ("max-vcpus", "3"),
        ("max-memory", "320Mi"),
        ("vm-disk", VM),
        ("restore", &restores),
    ]
    .map(|(key, value)| (format!("vmlet.dev/{key}"), value.to_owned()))
    .into();
    pod
}

async fn update(cri: &Cri, container: &str, cpus: i64, mib: i64) -> Result<()> {
    let resources = v1::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: cpus * 100_000,
        memory_limit_in_bytes: mib * MIB,
        ..v1::LinuxContainerResources::default()
    };
    Ok(cri.update(container, resources).await?)
}

/// Virtual CPUs that the guest works with, and its bytes of memory.
async fn of_guest(cri: &Cri, container: &str) -> Result<(i64, i64)> {
    let printed = cri.shell(container, "nproc; grep MemTotal /proc/meminfo");
    let printed = printed.await?;
    let mut words = printed.split_whitespace();
    let cpus = words.next().context("no number of CPUs")?.parse()?;
    let kib: i64 = words.nth(1).context("no memory")?.parse()?;
    Ok((cpus, kib * 1024))
}

/// Waits until the guest has so many CPUs and this memory; for added memory the kernel takes some.
async fn await_guest(cri: &Cri, container: &str, cpus: i64, bytes: i64) -> Result<()> {
    eventually(SOON, "a guest of another size", || async {
        let (has, memory) = of_guest(cri, container).await?;
        let is_near = (bytes - 12 * MIB..=bytes + MIB).contains(&memory);
        ensure!(
            has == cpus && is_near,
            "{has} CPUs and {memory} bytes, for {cpus} and {bytes}"
        );
        Ok(())
    })
    .await
}

/// Waits until status and verbose information have this size.
async fn await_status(
    stack: &Stack,
    cri: &Cri,
    container: &str,
    cpus: i64,
    mib: i64,
) -> Result<()> {
    eventually(SOON, "a status of this size", || async {
        let status = cri.container(container).await?;
        let linux = status.resources.and_then(|all| all.linux);
        let linux = linux.context("no resources")?;
        let has = (linux.cpu_quota / 100_000, linux.memory_limit_in_bytes / MIB);
        ensure!(has == (cpus, mib), "{has:?}");
        let inspected: Value = serde_json::from_str(&stack.crictl(&["inspect", container])?)?;
        let vm = &inspected["info"]["vm"];
        ensure!(vm["vcpus"] == cpus && vm["memoryMiB"] == mib, "{vm}");
        Ok(())
    })
    .await
}
