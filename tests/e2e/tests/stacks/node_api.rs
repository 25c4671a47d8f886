//! Virtual machines whose disks and memory outlive their pods.
//!
//! Invariant: what a guest wrote is there in its next pod; what it had in memory too, when that was
//! saved; no other machine gets at its disk.
//! Failure: the test names what was lost or allowed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use e2e::{
    Cri, Guest, NodeApi, PodOptions, Stack, await_text, eventually, in_time, provision, ticks, uid,
};
use nodeapi::v1::{self, machine::Power, run_task_request::Kind, task_status::State};
use tonic::Code;

const BOOT: Duration = Duration::from_secs(300);
const TASK: Duration = Duration::from_secs(180);
const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";

/// A pod of the machine.
fn pod(name: &str, stack: &Stack, more: &[&str]) -> PodOptions {
    let mut pod = PodOptions::named(name, stack);
    let mut set = |key: &str, value: &str| {
        pod.annotations
            .insert(format!("vmlet.dev/{key}"), value.to_owned());
    };
    set("vm-disk", VM);
    for key in more {
        set(key, "true");
    }
    pod
}

async fn remove(cri: &Cri, sandbox: &str) -> Result<()> {
    cri.stop_pod(sandbox).await?;
    Ok(cri.remove_pod(sandbox).await?)
}

async fn machine(node: &NodeApi, container: &str) -> Result<v1::Machine> {
    let machines = node.machines().await?;
    let mut found = machines.into_iter().filter(|m| m.container_id == container);
    found.next().context("the machine is not reported")
}

async fn await_power(node: &NodeApi, container: &str, power: Power) -> Result<v1::Machine> {
    eventually(TASK, &format!("{power:?}"), || async {
        let machine = machine(node, container).await?;
        ensure!(machine.power() == power, "{machine:?}");
        Ok(machine)
    })
    .await
}

/// Discards the memory of a machine that is being started from it: refused, unless the guest was
/// faster.
async fn discard_during_start(node: &NodeApi, container: &str, task: String) -> Result<()> {
    let watch = v1::WatchMachinesRequest {};
    let mut events = node.node.clone().watch_machines(watch).await?.into_inner();
    let started = async {
        loop {
            let event = events.message().await?.context("the stream ended")?;
            let machine = event.machine.filter(|m| m.container_id == container);
            if machine.is_some_and(|machine| machine.power() != Power::Off) {
                return Ok(());
            }
        }
    };
    in_time(TASK, "a machine that is being started", started).await?;
    let discard = Kind::Restore(v1::Restore { discard: true });
    let status = node.end(&task, VM, discard, TASK).await?;
    let refused = status.state() == State::Error && status.transient;
    ensure!(refused || status.state() == State::Success, "{status:?}");
    Ok(())
}

#[tokio::test]
#[ignore = "needs root"]
async fn what_a_guest_wrote_is_there_in_its_next_pod() -> Result<()> {
    let stack = Stack::up()?;
    let cri = stack.cri().await?;
    let node = stack.node().await?;
    cri.await_ready().await?;
    let image = stack.image()?.to_owned();

    // No pod boots from a disk that was not created.
    cri.pull(&image).await?;
    let first = pod("first", &stack, &[]);
    let sandbox = cri.run(first.sandbox()).await?;
    let early = Box::pin(cri.create(&sandbox, first.container(&image, 0), first.sandbox())).await;
    let refused = early.expect_err("a machine without a disk");
    ensure!(refused.code() == Code::FailedPrecondition, "{refused:?}");
    ensure!(refused.message().contains("no disk"), "{refused:?}");

    // The image goes while its disk is made and used: the file must stay.
    node.done(&uid(1), VM, provision(&image), TASK).await?;
    cri.remove_image(&image).await?;
    cri.pull(&image).await?;
    let container = Box::pin(cri.create(&sandbox, first.container(&image, 0), first.sandbox()));
    let container = container.await?;
    cri.start(&container).await?;
    await_text(&first.log(0), "VMLET-GUEST-READY", BOOT).await?;
    await_text(&first.log(0), "VMLET-BOOTS 1", BOOT).await?;
    let reported = eventually(TASK, "facts of the guest", || async {
        let reported = machine(&node, &container).await?;
        ensure!(reported.agent() == v1::Agent::Connected, "{reported:?}");
        ensure!(!reported.interfaces.is_empty(), "{reported:?}");
        Ok(reported)
    })
    .await?;
    ensure!(
        reported.vm_uid == VM && reported.domain_uuid == VM,
        "{reported:?}"
    );
    ensure!(reported.machine_type.starts_with("pc-q35"), "{reported:?}");
    let ip = cri.ip(&sandbox).await?;
    let addresses = reported.interfaces.iter().flat_map(|nic| &nic.addresses);
    ensure!(
        addresses.clone().any(|a| a.starts_with(&format!("{ip}/"))),
        "{reported:?}"
    );

    // Published values are reported with the next facts.
    let publish = "mkdir -p /run/vmlet && echo app.state=up > /run/vmlet/guestinfo";
    Guest::in_pod(&stack, "first")?.run(&["sh", "-c", publish])?;
    eventually(BOOT, "what the guest publishes", || async {
        let reported = machine(&node, &container).await?.guest_info;
        let state = reported.get("app.state").map(String::as_str);
        ensure!(reported.len() == 1 && state == Some("up"), "{reported:?}");
        Ok(())
    })
    .await?;

    // While it runs no other container gets its disk, and the disk is not removed.
    let second = pod("second", &stack, &[]);
    let other = cri.run(second.sandbox()).await?;
    let both = Box::pin(cri.create(&other, second.container(&image, 0), second.sandbox())).await;
    let refused = both.expect_err("two machines on one disk");
    ensure!(refused.code() == Code::FailedPrecondition, "{refused:?}");
    ensure!(refused.message().contains("in use"), "{refused:?}");
    let delete = Kind::DeleteDisk(v1::DeleteDisk {});
    let status = node.end(&uid(2), VM, delete.clone(), TASK).await?;
    ensure!(
        status.state() == State::Error && status.transient,
        "{status:?}"
    );

    // A guest that is requested to power off does; its pod goes, the disk stays.
    let ask = Kind::GuestShutdown(v1::GuestShutdown {
        timeout_seconds: 600,
    });
    node.done(&uid(3), VM, ask, 2 * BOOT).await?;
    let ended = cri.await_exit(&container, TASK).await?;
    ensure!(
        (ended.exit_code, ended.reason.as_str()) == (0, "Completed"),
        "{ended:?}"
    );
    remove(&cri, &sandbox).await?;
    let disks = node.disks().await?;
    ensure!(
        disks.len() == 1 && disks[0].complete && disks[0].in_use_by.is_empty(),
        "{disks:?}"
    );

    let container = Box::pin(cri.create(&other, second.container(&image, 0), second.sandbox()));
    let container = container.await?;
    cri.start(&container).await?;
    await_text(&second.log(0), "VMLET-BOOTS 2", BOOT).await?;

    // A guest that ignores requests does not reboot on request.
    cri.await_agent(&container).await?;
    Guest::in_pod(&stack, "second")?.become_unresponsive()?;
    let reboot = |timeout_seconds| Kind::GuestReboot(v1::GuestReboot { timeout_seconds });
    let status = node.end(&uid(8), VM, reboot(1), TASK).await?;
    let words = "did not reboot within 1 s";
    ensure!(
        status.state() == State::Error && status.transient && status.message.contains(words),
        "{status:?}"
    );
    // Reset: the same container boots once more, and responds again, since the guest's programs are
    // in memory.
    node.done(&uid(4), VM, Kind::Reset(v1::Reset {}), TASK)
        .await?;
    // While it boots it ignores requests, and gets them until it responds.
    node.done(&uid(5), VM, reboot(600), 2 * BOOT).await?;
    await_text(&second.log(0), "VMLET-BOOTS 3", BOOT).await?;
    await_text(&second.log(0), "VMLET-BOOTS 4", BOOT).await?;
    let status = cri.container(&container).await?;
    ensure!(status.finished_at == 0, "{status:?}");

    remove(&cri, &other).await?;
    for task in [6, 7] {
        node.done(&uid(task), VM, delete.clone(), TASK).await?;
    }
    ensure!(node.disks().await?.is_empty());
    stack.await_clean().await?;
    stack.down()
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_suspended_guest_goes_on_where_it_was() -> Result<()> {
    let stack = Stack::up()?;
    let cri = stack.cri().await?;
    let node = stack.node().await?;
    let image = cri.await_image(&stack).await?;
    node.done(&uid(1), VM, provision(&image), TASK).await?;
    let first = pod("before", &stack, &[]);
    let (sandbox, container) = cri.boot(&first, &image).await?;
    await_text(&first.log(0), "VMLET-TICK", BOOT).await?;
    let ip = cri.ip(&sandbox).await?;
    stack.fetch(&format!("http://{ip}/"), BOOT).await?;

    set_clock_back(&cri, &container).await?;
    node.done(&uid(2), VM, Kind::Save(v1::Save {}), TASK)
        .await?;
    let ended = cri.await_exit(&container, TASK).await?;
    ensure!(
        (ended.exit_code, ended.reason.as_str()) == (0, "Saved"),
        "{ended:?}"
    );
    remove(&cri, &sandbox).await?;
    ensure!(node.disks().await?[0].saved_memory);
    let before = *ticks(&std::fs::read_to_string(first.log(0))?)
        .last()
        .context("it counted")?;

    // It does not boot over what it had in memory.
    let cold = pod("cold", &stack, &[]);
    let sandbox = cri.run(cold.sandbox()).await?;
    let booted = Box::pin(cri.create(&sandbox, cold.container(&image, 0), cold.sandbox())).await;
    let refused = booted.expect_err("a boot over saved memory");
    ensure!(refused.code() == Code::FailedPrecondition, "{refused:?}");
    remove(&cri, &sandbox).await?;

    let restore = Kind::Restore(v1::Restore { discard: false });
    node.done(&uid(3), VM, restore, TASK).await?;
    let second = pod("after", &stack, &["restore"]);
    let sandbox = cri.run(second.sandbox()).await?;
    let created = Box::pin(cri.create(&sandbox, second.container(&image, 0), second.sandbox()));
    let container = created.await?;
    // A discard during the restore is refused.
    let late = discard_during_start(&node, &container, uid(9));
    let (started, late) = tokio::join!(cri.start(&container), Box::pin(late));
    started?;
    late?;
    let after = eventually(BOOT, "a tick", || async {
        let log = std::fs::read_to_string(second.log(0))?;
        ticks(&log).first().copied().context("no tick yet")
    })
    .await?;
    ensure!(
        after.count > before.count && after.count < before.count + 20,
        "{before:?}, {after:?}"
    );
    let log = std::fs::read_to_string(second.log(0))?;
    ensure!(!log.contains("VMLET-BOOTS"), "it booted: {log}");
    ensure!(!node.disks().await?[0].saved_memory);

    // Same addresses, same NIC: the network answers as before.
    let ip = cri.ip(&sandbox).await?;
    let page = stack.fetch(&format!("http://{ip}/"), BOOT).await?;
    ensure!(page.contains("before"), "the guest kept its name: {page}");

    await_clock(&cri, &container).await?;
    set_clock_back(&cri, &container).await?;

    // A paused guest prints nothing, and a restart of the daemon does not let it run.
    node.done(&uid(4), VM, Kind::Pause(v1::Pause {}), TASK)
        .await?;
    let paused = await_power(&node, &container, Power::Paused).await?;
    ensure!(paused.pause_reason == "PausedByUser", "{paused:?}");
    stack.restart("vmlet")?;
    let cri = stack.cri().await?;
    let node = stack.node().await?;
    await_power(&node, &container, Power::Paused).await?;
    node.done(&uid(5), VM, Kind::Unpause(v1::Unpause {}), TASK)
        .await?;
    await_power(&node, &container, Power::On).await?;
    stack.fetch(&format!("http://{ip}/"), BOOT).await?;
    await_clock(&cri, &container).await?;

    // Memory that is discarded no longer exists: the next pod boots.
    node.done(&uid(6), VM, Kind::Save(v1::Save {}), TASK)
        .await?;
    remove(&cri, &sandbox).await?;
    let discard = Kind::Restore(v1::Restore { discard: true });
    node.done(&uid(7), VM, discard, TASK).await?;
    let third = pod("cold-again", &stack, &[]);
    let (sandbox, _) = cri.boot(&third, &image).await?;
    await_text(&third.log(0), "VMLET-BOOTS 2", BOOT).await?;
    remove(&cri, &sandbox).await?;
    let delete = Kind::DeleteDisk(v1::DeleteDisk {});
    node.done(&uid(8), VM, delete, TASK).await?;
    stack.await_clean().await?;
    stack.down()
}

/// The guest's clock is years late, as after a long suspension.
async fn set_clock_back(cri: &Cri, container: &str) -> Result<()> {
    cri.await_agent(container).await?;
    cri.shell(container, "date -s '2020-02-02 02:02:02'")
        .await
        .map(drop)
}

/// The guest's clock is that of the node again.
async fn await_clock(cri: &Cri, container: &str) -> Result<()> {
    eventually(BOOT, "a guest with the time of the node", || async {
        let seconds: u64 = cri.shell(container, "date +%s").await?.parse()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        ensure!(
            now.abs_diff(seconds) < 3600,
            "{seconds} in the guest, {now} here"
        );
        Ok(())
    })
    .await
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_pod_that_only_chooses_a_node_never_boots() -> Result<()> {
    let stack = Stack::up()?;
    let cri = stack.cri().await?;
    let node = stack.node().await?;
    // A stack that is up can start machines.
    cri.check_ready().await?;
    let image = stack.image()?.to_owned();
    cri.pull(&image).await?;
    let mut pod = PodOptions::named("place", &stack);
    pod.annotations
        .insert("vmlet.dev/role".to_owned(), "provision".to_owned());
    let (sandbox, container) = cri.boot(&pod, &image).await?;
    let held = cri.container(&container).await?;
    ensure!(
        held.state == e2e::v1::ContainerState::ContainerRunning as i32,
        "{held:?}"
    );
    ensure!(node.machines().await?.is_empty());
    cri.stop(&container, 3600).await?;
    let ended = cri.container(&container).await?;
    ensure!(
        (ended.exit_code, ended.reason.as_str()) == (0, "Provisioned"),
        "{ended:?}"
    );
    ensure!(node.machines().await?.is_empty());
    remove(&cri, &sandbox).await?;
    stack.await_clean().await?;
    stack.down()
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_task_runs_once_however_often_it_is_sent() -> Result<()> {
    let stack = Stack::up()?;
    let cri = stack.cri().await?;
    let node = stack.node().await?;
    cri.await_ready().await?;
    let image = stack.image()?.to_owned();
    node.done(&uid(1), VM, provision(&image), TASK).await?;
    let first = node.send(&uid(1), VM, provision(&image)).await?;
    let again = node.send(&uid(1), VM, provision(&image)).await?;
    ensure!(first == again, "{first:?}, {again:?}");
    let other = node.send(&uid(1), VM, Kind::Save(v1::Save {})).await;
    ensure!(other.is_err_and(|e| e.code() == Code::InvalidArgument));
    let odd = node.send("../../etc", VM, Kind::Save(v1::Save {})).await;
    ensure!(odd.is_err_and(|e| e.code() == Code::InvalidArgument));
    let status = node.end(&uid(2), VM, Kind::Save(v1::Save {}), TASK).await?;
    ensure!(status.state() == State::Error, "{status:?}");
    stack.restart("vmlet")?;
    let node = stack.node().await?;
    ensure!(node.tasks().await?.len() == 2);
    for _ in 0..2 {
        node.forget(&uid(1)).await?;
    }
    ensure!(node.tasks().await?.len() == 1);
    let absent = provision("vmlet.dev/nothing-of-this-name");
    let status = node.end(&uid(3), &uid(9), absent, TASK).await?;
    ensure!(status.state() == State::Error, "{status:?}");
    let disks = node.disks().await?;
    ensure!(disks.len() == 1, "a failed disk is left: {disks:?}");
    let delete = Kind::DeleteDisk(v1::DeleteDisk {});
    node.done(&uid(4), VM, delete, TASK).await?;
    cri.remove_image(&image).await?;
    stack.await_clean().await?;
    stack.down()
}
