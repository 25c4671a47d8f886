//! Disks that become independent of their images, under a running guest and without one.
//!
//! Invariant: what the guest wrote before, during and after is there, with all of its image; then no
//! file is under the disk, and the image can be removed.
//! Failure: the test names the byte range, the task or the file.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cri, NodeApi, PodOptions, Stack, await_text, eventually, uid};
use nix::sys::signal::Signal;
use nodeapi::v1::{self, promote::Mode, run_task_request::Kind, task_status::State};
use serde_json::Value;

const BOOT: Duration = Duration::from_secs(300);
const TASK: Duration = Duration::from_secs(240);
const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";
/// More than the image has, so that a guest has a place of its own.
const SIZE: u64 = 128 << 20;
/// What the image has, as the guest reads it from the disk: each boot writes beside it.
const IMAGE_SUM: &str = "echo 3 >/proc/sys/vm/drop_caches; sha256sum </boot/vmlinuz";

fn linked(image: &str) -> Kind {
    Kind::Provision(v1::Provision {
        image: image.to_owned(),
        size_bytes: SIZE,
        mode: v1::provision::Mode::Linked.into(),
        vm_name: "default/vm".to_owned(),
        image_url: String::new(),
        image_tls_secret: String::new(),
    })
}

fn promote(mode: Mode) -> Kind {
    Kind::Promote(v1::Promote { mode: mode.into() })
}

fn pod(name: &str, stack: &Stack) -> PodOptions {
    let mut pod = PodOptions::named(name, stack);
    let disk = ("vmlet.dev/vm-disk".to_owned(), VM.to_owned());
    pod.annotations.extend([disk]);
    pod
}

async fn boot(cri: &Cri, pod: &PodOptions, image: &str) -> Result<(String, String)> {
    let (sandbox, container) = Box::pin(cri.boot(pod, image)).await?;
    await_text(&pod.log(0), "VMLET-GUEST-READY", BOOT).await?;
    cri.await_agent(&container).await?;
    Ok((sandbox, container))
}

/// A machine that runs on a linked disk, task 1.
struct Machine {
    sandbox: String,
    container: String,
    /// What the guest reads of its image.
    image_sum: String,
    /// The file of the image.
    base: PathBuf,
}

async fn linked_machine(stack: &Stack, image: &str) -> Result<Machine> {
    slow_down(stack).await?;
    let (cri, node) = (stack.cri().await?, stack.node().await?);
    cri.pull(image).await?;
    node.done(&uid(1), VM, linked(image), TASK).await?;
    let base = base(stack)?;
    let (sandbox, container) = boot(&cri, &pod("first", stack), image).await?;
    Ok(Machine {
        image_sum: cri.shell(&container, IMAGE_SUM).await?,
        sandbox,
        container,
        base,
    })
}

/// The header of the disk, as `qemu-img` reads it.
fn header(stack: &Stack) -> Result<Value> {
    let file = stack.dir().join("state/disks").join(VM).join("root.qcow2");
    let mut info = Command::new("qemu-img");
    let info = info.args(["info", "-U", "--output=json"]).arg(&file);
    let done = info.output()?;
    ensure!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    Ok(serde_json::from_slice(&done.stdout)?)
}

/// The file of the image under the disk.
fn base(stack: &Stack) -> Result<PathBuf> {
    let header = header(stack)?;
    let base = header["full-backing-filename"].as_str();
    Ok(base.context("the disk is no overlay")?.into())
}

/// The disk is whole, its record says so, and its image can be removed.
async fn check_whole(
    stack: &Stack,
    cri: &Cri,
    node: &NodeApi,
    image: &str,
    base: &Path,
) -> Result<()> {
    let header = header(stack)?;
    ensure!(header.get("backing-filename").is_none(), "{header}");
    let disks = node.disks().await?;
    ensure!(
        matches!(&disks[..], [disk] if !disk.linked && disk.complete),
        "{disks:?}"
    );
    ensure!(base.exists(), "it is listed");
    cri.remove_image(image).await?;
    ensure!(!base.exists(), "the image is still pinned");
    Ok(())
}

async fn status(node: &NodeApi, task: &str) -> Result<v1::TaskStatus> {
    let tasks = node.tasks().await?;
    let mut found = tasks.into_iter().filter(|status| status.uid == task);
    found.next().context("the task is not known")
}

/// Restricts promotions, so that they are met in the middle.
async fn slow_down(stack: &Stack) -> Result<()> {
    let file = stack.dir().join("vmlet.toml");
    let text = std::fs::read_to_string(&file)?;
    let slow = "[node]\npromotion_bandwidth = \"1Mi\"\n";
    std::fs::write(&file, text.replacen("[node]\n", slow, 1))?;
    stack.restart("vmlet")?;
    stack.cri().await?.await_ready().await
}

async fn await_progress(stack: &Stack, task: &str, least: u32) -> Result<()> {
    eventually(TASK, "progress", || async {
        let status = status(&stack.node().await?, task).await?;
        ensure!(status.progress_percent >= least, "{status:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_disk_is_promoted_under_its_guest_whatever_is_killed() -> Result<()> {
    let stack = Stack::up()?;
    let image = stack.image()?.to_owned();
    let first = linked_machine(&stack, &image).await?;
    let Machine {
        sandbox,
        container,
        image_sum,
        base,
    } = first;
    let cri = stack.cri().await?;
    // From here on the guest writes, each time to another place, and knows what is there last.
    let writer = "n=0; while :; do n=$((n+1)); printf '%016d' $n | \
        dd of=/dev/vda bs=16 seek=$((5242880 + n % 4096)) conv=notrunc,fsync 2>/dev/null \
        && echo $n > /run/written; done";
    let start = format!("(trap '' HUP; {writer}) >/dev/null 2>&1 </dev/null & echo begun");
    cri.shell(&container, &start).await?;

    stack.arm("node.pull.begun")?;
    let task = uid(2);
    let node = stack.node().await?;
    let begun = node.send(&task, VM, promote(Mode::Online)).await;
    begun.context("the task is taken")?;
    eventually(TASK, "the death of the daemon", || async {
        ensure!(!stack.is_alive("vmlet"));
        Ok(())
    })
    .await?;
    stack.restart("vmlet")?;
    await_progress(&stack, &task, 10).await?;
    // Another task of the machine does not wait for it.
    let node = stack.node().await?;
    for (number, kind) in [
        (3, Kind::Pause(v1::Pause {})),
        (4, Kind::Unpause(v1::Unpause {})),
    ] {
        node.done(&uid(number), VM, kind, TASK).await?;
        let status = status(&node, &task).await?;
        ensure!(status.state() == State::Running, "{status:?}");
    }
    stack.kill("libvirtd", Signal::SIGKILL).await?;
    stack.restart("libvirtd")?;
    await_progress(&stack, &task, 30).await?;
    stack.kill("vmlet", Signal::SIGKILL).await?;
    stack.restart("vmlet")?;
    let (cri, node) = (stack.cri().await?, stack.node().await?);
    cri.await_ready().await?;
    let done = node.end(&task, VM, promote(Mode::Online), TASK).await?;
    ensure!(done.state() == State::Success, "{done:?}");
    check_whole(&stack, &cri, &node, &image, &base).await?;

    let written = "cat /run/written";
    let during: u64 = cri.shell(&container, written).await?.trim().parse()?;
    let after = eventually(TASK, "writes after the promotion", || async {
        let now: u64 = cri.shell(&container, written).await?.trim().parse()?;
        ensure!(now > during, "{now}");
        Ok(now)
    })
    .await?;
    ensure!(cri.shell(&container, IMAGE_SUM).await? == image_sum);
    // It boots from the disk alone.
    cri.stop_pod(&sandbox).await?;
    cri.remove_pod(&sandbox).await?;
    cri.pull(&image).await?;
    let second = pod("second", &stack);
    let (sandbox, container) = boot(&cri, &second, &image).await?;
    let sum = cri.shell(&container, IMAGE_SUM).await?;
    ensure!(sum == image_sum, "{sum} is not {image_sum}");
    let read = "dd if=/dev/vda bs=16 skip=5242880 count=4096 2>/dev/null";
    let blocks = cri.shell(&container, read).await?;
    check_blocks(&blocks, after)?;
    cri.stop_pod(&sandbox).await?;
    cri.remove_pod(&sandbox).await?;
    let delete = Kind::DeleteDisk(v1::DeleteDisk {});
    node.done(&uid(5), VM, delete, TASK).await?;
    for number in 1..=5 {
        node.forget(&uid(number)).await?;
    }
    stack.await_clean().await?;
    stack.down()
}

/// Every place has the last number that was written to it, or the one before.
fn check_blocks(blocks: &str, acknowledged: u64) -> Result<()> {
    let numbers = blocks.as_bytes().chunks_exact(16);
    let parse = |(place, text): (u64, &[u8])| {
        let text = std::str::from_utf8(text)?;
        let number = match text.trim_matches('\0') {
            "" => 0,
            text => text.parse::<u64>()?,
        };
        ensure!(number == 0 || number % 4096 == place, "{place}: {number}");
        Ok((place, number))
    };
    let read: Vec<_> = (0..).zip(numbers).map(parse).collect::<Result<_>>()?;
    ensure!(!read.is_empty(), "nothing was read");
    for (place, number) in read {
        // 0: this place was not reached yet.
        let last = acknowledged.saturating_sub((acknowledged + 4096 - place) % 4096);
        ensure!(number >= last, "{place} has {number}, {last} was written");
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_promotion_makes_way_for_a_save_and_is_done_when_the_machine_is_off() -> Result<()> {
    let stack = Stack::up()?;
    let image = stack.image()?.to_owned();
    let first = linked_machine(&stack, &image).await?;
    let Machine {
        sandbox,
        container,
        image_sum,
        base,
    } = first;
    let (cri, node) = (stack.cri().await?, stack.node().await?);
    let write = "echo kept | dd of=/dev/vda bs=512 seek=200000 conv=fsync";
    cri.shell(&container, write).await?;

    let task = uid(2);
    node.send(&task, VM, promote(Mode::Online)).await?;
    await_progress(&stack, &task, 10).await?;
    let cancelled = uid(3);
    node.node
        .clone()
        .cancel_task(v1::CancelTaskRequest { uid: task.clone() })
        .await?;
    let ended = node.end(&task, VM, promote(Mode::Online), TASK).await?;
    ensure!(ended.state() == State::Cancelled, "{ended:?}");
    node.send(&cancelled, VM, promote(Mode::Online)).await?;
    await_progress(&stack, &cancelled, 10).await?;
    node.done(&uid(4), VM, Kind::Save(v1::Save {}), TASK)
        .await?;
    let ended = node
        .end(&cancelled, VM, promote(Mode::Online), TASK)
        .await?;
    ensure!(
        ended.state() == State::Error && ended.transient,
        "{ended:?}"
    );
    ensure!(base.exists());
    // Not below memory that the guest is to return from.
    let refused = node.end(&uid(5), VM, promote(Mode::Offline), TASK).await?;
    ensure!(refused.state() == State::Error, "{refused:?}");
    cri.stop_pod(&sandbox).await?;
    cri.remove_pod(&sandbox).await?;
    let discard = Kind::Restore(v1::Restore { discard: true });
    node.done(&uid(6), VM, discard, TASK).await?;

    node.done(&uid(7), VM, promote(Mode::Offline), TASK).await?;
    check_whole(&stack, &cri, &node, &image, &base).await?;
    cri.pull(&image).await?;
    let second = pod("second", &stack);
    let (sandbox, container) = boot(&cri, &second, &image).await?;
    ensure!(cri.shell(&container, IMAGE_SUM).await? == image_sum);
    let read = "dd if=/dev/vda bs=512 skip=200000 count=1 2>/dev/null | head -n 1";
    let kept = cri.shell(&container, read).await?;
    ensure!(kept == "kept", "{kept:?}");
    cri.stop_pod(&sandbox).await?;
    cri.remove_pod(&sandbox).await?;
    let delete = Kind::DeleteDisk(v1::DeleteDisk {});
    node.done(&uid(8), VM, delete, TASK).await?;
    for number in 1..=8 {
        node.forget(&uid(number)).await?;
    }
    stack.await_clean().await?;
    stack.down()
}
