//! Disks of machines become independent of their images, while these are off and while they run.
//!
//! Invariant: what the guest wrote is there, with all of its image; then no file is under the disk,
//! and the image can be removed.
//! Failure: the test names the task or the file.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cri, NodeApi, PodOptions, Stack, await_text, eventually, program, uid};
use nodeapi::v1::{self, run_task_request::Kind, task_status::State};
use serde_json::Value;

use crate::linked_disk::{IMAGE_SUM, linked};

const BOOT: Duration = Duration::from_secs(300);
const TASK: Duration = Duration::from_secs(240);
const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";

fn promote_online() -> Kind {
    Kind::Promote(v1::Promote { online: true })
}

fn promote() -> Kind {
    Kind::Promote(v1::Promote { online: false })
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
    let cri = stack.cri().await?;
    let node = stack.node().await?;
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
    let done = program::output(info)?;
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

#[tokio::test]
#[ignore = "needs root"]
async fn a_disk_is_promoted_while_its_machine_is_off_whatever_is_killed() -> Result<()> {
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
    let node = stack.node().await?;
    let write = "echo kept | dd of=/dev/vda bs=512 seek=200000 conv=fsync";
    cri.shell(&container, write).await?;
    let refused = async |task: &str| {
        let refused = node.end(task, VM, promote(), TASK).await?;
        ensure!(
            refused.state() == State::Error && refused.transient,
            "{refused:?}"
        );
        Ok(())
    };
    refused(&uid(2)).await.context("the machine runs")?;
    node.done(&uid(3), VM, Kind::Save(v1::Save {}), TASK)
        .await?;
    // Not below memory that the guest is to return from.
    refused(&uid(4)).await.context("the machine is suspended")?;
    ensure!(base.exists());
    cri.stop_pod(&sandbox).await?;
    cri.remove_pod(&sandbox).await?;
    let discard = Kind::Restore(v1::Restore { discard: true });
    node.done(&uid(5), VM, discard, TASK).await?;

    let task = uid(6);
    stack.arm("node.promote.copied")?;
    let begun = node.send(&task, VM, promote()).await;
    begun.context("the task is taken")?;
    eventually(TASK, "the death of the daemon", || async {
        ensure!(!stack.is_alive("vmlet"));
        Ok(())
    })
    .await?;
    ensure!(base.exists() && header(&stack)?.get("backing-filename").is_some());
    stack.restart("vmlet")?;
    let cri = stack.cri().await?;
    let node = stack.node().await?;
    cri.await_ready().await?;
    let done = node.end(&task, VM, promote(), TASK).await?;
    ensure!(done.state() == State::Success, "{done:?}");
    check_whole(&stack, &cri, &node, &image, &base).await?;

    // It boots from the disk alone.
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
    node.done(&uid(7), VM, delete, TASK).await?;
    for number in 1..=7 {
        node.forget(&uid(number)).await?;
    }
    stack.await_clean().await?;
    stack.down()
}

/// Ends with success once what may pass has passed.
async fn promoted(node: &NodeApi, task: &str) -> Result<()> {
    let done = eventually(TASK, "a promotion", || async {
        let done = node.end(task, VM, promote_online(), TASK).await?;
        if done.transient {
            node.forget(task).await?;
            anyhow::bail!("{done:?}");
        }
        Ok(done)
    })
    .await?;
    ensure!(done.state() == State::Success, "{done:?}");
    Ok(())
}

/// The guest writes numbered blocks on its disk, one after the other, until the file `stop` exists.
const WRITER: &str = "(n=0; while [ ! -e /tmp/stop ] && [ $n -lt 20000 ]; do n=$((n+1)); \
    printf '%-511s\\n' $n | dd of=/dev/vda bs=512 seek=$((200000+n)) conv=notrunc,fsync; \
    echo $n >/tmp/n; done; touch /tmp/done) >/dev/null 2>&1 </dev/null & echo begun";

/// The number of these blocks, and how many are not what the guest wrote, read from the disk.
const CHECK: &str = "touch /tmp/stop; while [ ! -e /tmp/done ]; do sleep 1; done; \
    echo 3 >/proc/sys/vm/drop_caches; \
    dd if=/dev/vda bs=512 skip=200001 count=$(cat /tmp/n) 2>/dev/null | tr -d ' ' | \
    { n=0; bad=0; while read is; do n=$((n+1)); [ \"$is\" = $n ] || bad=$((bad+1)); done; echo $n $bad; }";

#[tokio::test]
#[ignore = "needs root"]
async fn a_disk_is_promoted_while_its_guest_writes_whatever_is_killed() -> Result<()> {
    let stack = Stack::up()?;
    let image = stack.image()?.to_owned();
    let first = linked_machine(&stack, &image).await?;
    let cri = stack.cri().await?;
    let node = stack.node().await?;
    let off = node.end(&uid(2), VM, promote(), TASK).await?;
    ensure!(off.state() == State::Error && off.transient, "{off:?}");
    cri.shell(&first.container, WRITER).await?;

    // Each time the daemon dies, its machine goes on, and so does the promotion.
    let points = ["pulls", "copies", "pulled"].map(|step| format!("node.promote.{step}"));
    for point in &points {
        stack.arm(point)?;
    }
    let task = uid(3);
    let begun = node.send(&task, VM, promote_online()).await;
    begun.context("the task is taken")?;
    for point in &points {
        eventually(TASK, point, || async {
            ensure!(!stack.is_armed(point) && !stack.is_alive("vmlet"));
            Ok(())
        })
        .await?;
        stack.restart("vmlet")?;
    }
    let cri = stack.cri().await?;
    let node = stack.node().await?;
    cri.await_ready().await?;
    promoted(&node, &task).await?;
    let disks = node.disks().await?;
    ensure!(matches!(&disks[..], [disk] if !disk.linked), "{disks:?}");
    cri.await_agent(&first.container).await?;
    let sum = cri.shell(&first.container, IMAGE_SUM).await?;
    ensure!(sum == first.image_sum, "{sum}");
    let counted = cri.shell(&first.container, CHECK).await?;
    let counted: Vec<u64> = counted.split_whitespace().flat_map(str::parse).collect();
    ensure!(
        matches!(counted[..], [written, 0] if written > 0),
        "blocks that were written, and wrong ones: {counted:?}"
    );
    let last = counted[0];
    cri.stop_pod(&first.sandbox).await?;
    cri.remove_pod(&first.sandbox).await?;
    check_whole(&stack, &cri, &node, &image, &first.base).await?;

    // It boots from the disk alone.
    cri.pull(&image).await?;
    let second = pod("second", &stack);
    let (sandbox, container) = boot(&cri, &second, &image).await?;
    ensure!(cri.shell(&container, IMAGE_SUM).await? == first.image_sum);
    let read = format!(
        "dd if=/dev/vda bs=512 skip={} count=1 2>/dev/null | tr -d ' \\n'",
        200_000 + last
    );
    let kept = cri.shell(&container, &read).await?;
    ensure!(kept == last.to_string(), "{kept:?}, not {last}");
    cri.stop_pod(&sandbox).await?;
    cri.remove_pod(&sandbox).await?;
    let delete = Kind::DeleteDisk(v1::DeleteDisk {});
    node.done(&uid(4), VM, delete, TASK).await?;
    for number in 1..=4 {
        node.forget(&uid(number)).await?;
    }
    stack.await_clean().await?;
    stack.down()
}
