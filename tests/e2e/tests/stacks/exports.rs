//! Disks that clients fetch from the node.
//!
//! Invariant: what a client has received is compared with the disk, and with what the guest wrote.
//! Failure: the test names what was sent, kept or allowed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::{Cri, NodeApi, PodOptions, Stack, await_text, eventually, program, provision, uid};
use nix::sys::signal::Signal;
use nodeapi::v1::{self, export_event::Event, run_task_request::Kind};
use tonic::{Code, Status, Streaming};

const BOOT: Duration = Duration::from_secs(300);
const TASK: Duration = Duration::from_secs(180);
const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b2a";
const MIB: usize = 1 << 20;

/// Where the guest writes, and where the node's files are compared.
pub(super) const AT: usize = 100;
pub(super) const COUNT: usize = 24;

fn pod(name: &str, stack: &Stack) -> PodOptions {
    let mut pod = PodOptions::named(name, stack);
    let disk = ("vmlet.dev/vm-disk".to_owned(), VM.to_owned());
    pod.annotations.extend([disk]);
    pod
}

/// What a client has.
#[derive(Default)]
pub(super) struct Fetched {
    pub(super) bytes: Vec<u8>,
    pub(super) offset: u64,
    pub(super) sum: Option<String>,
}

async fn export(node: &NodeApi, received: &Path) -> Result<Streaming<v1::ExportEvent>, Status> {
    let length = fs::metadata(received).map_or(0, |is| is.len());
    let request = v1::ExportDiskRequest {
        vm_uid: VM.to_owned(),
        received_bytes: length,
        received_sha256: match length {
            0 => String::new(),
            _ => sum_of(received).unwrap_or_default(),
        },
    };
    Ok(node.node.clone().export_disk(request).await?.into_inner())
}

/// Reads all, or this many bytes.
pub(super) async fn read(
    events: &mut Streaming<v1::ExportEvent>,
    most: usize,
) -> Result<Fetched, Status> {
    let mut fetched = Fetched::default();
    while let Some(event) = events.message().await? {
        match event.event {
            Some(Event::Begin(begin)) => fetched.offset = begin.offset,
            Some(Event::Data(data)) => fetched.bytes.extend(data),
            Some(Event::End(end)) => fetched.sum = Some(end.sha256),
            _ => {}
        }
        if fetched.bytes.len() >= most {
            break;
        }
    }
    Ok(fetched)
}

async fn refusal(node: &NodeApi) -> Result<Status> {
    let sent = match export(node, Path::new("/none")).await {
        Ok(mut events) => read(&mut events, usize::MAX).await.map(drop),
        Err(status) => Err(status),
    };
    match sent {
        Err(status) => Ok(status),
        Ok(()) => bail!("the disk was exported"),
    }
}

pub(super) fn sum_of(file: &Path) -> Result<String> {
    let sum = program::output(Command::new("sha256sum").arg(file))?;
    let text = String::from_utf8(sum.stdout)?;
    Ok(text.split_whitespace().next().context("a sum")?.to_owned())
}

fn qemu_img(arguments: &[&str], files: &[&Path]) -> Result<String> {
    let output = program::output(Command::new("qemu-img").args(arguments).args(files))?;
    ensure!(output.status.success(), "{output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

fn copies(stack: &Stack) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(stack.dir().join("state/exports"))?;
    let paths = entries.map(|entry| Ok(entry?.path()));
    paths.collect()
}

pub(super) async fn await_copies(stack: &Stack, count: usize) -> Result<()> {
    eventually(TASK, "the removal of the copy", || async {
        let there = copies(stack)?;
        ensure!(there.len() == count, "{there:?}");
        Ok(())
    })
    .await
}

/// What a file that was fetched has in the guest's part of the disk. It is a disk that stands alone.
pub(super) fn sum_in_file(file: &Path) -> Result<String> {
    ensure!(qemu_img(&["check", "-f", "qcow2"], &[file])?.contains("No errors"));
    let info = qemu_img(&["info", "-f", "qcow2"], &[file])?;
    ensure!(!info.contains("backing"), "{info}");
    let raw = file.with_extension("raw");
    qemu_img(&["convert", "-O", "raw"], &[file, &raw])?;
    let bytes = fs::read(&raw)?;
    fs::write(&raw, &bytes[AT * MIB..(AT + COUNT) * MIB])?;
    let sum = sum_of(&raw)?;
    fs::remove_file(raw)?;
    Ok(sum)
}

/// What the guest has in its part of the disk.
async fn sum_in_guest(cri: &Cri, container: &str) -> Result<String> {
    let line = format!("dd if=/dev/vda bs=1M skip={AT} count={COUNT} 2>/dev/null | sha256sum");
    let reported = cri.shell(container, &line).await?;
    let sum = reported.split_whitespace().next();
    Ok(sum.context("a sum")?.to_owned())
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_stopped_disk_is_fetched_in_parts_over_a_kill_of_the_daemon() -> Result<()> {
    let stack = Stack::up()?;
    let cri = stack.cri().await?;
    let node = stack.node().await?;
    let image = cri.await_image(&stack).await?;
    ensure!(refusal(&node).await?.code() == Code::NotFound);
    let Kind::Provision(disk) = provision(&image) else {
        bail!("no disk");
    };
    let disk = Kind::Provision(v1::Provision {
        size_bytes: 200 * MIB as u64,
        ..disk
    });
    node.done(&uid(1), VM, disk, TASK).await?;

    // What the guest writes does not compress, so that no part of it is left out.
    let first = pod("first", &stack);
    let (sandbox, container) = cri.boot(&first, &image).await?;
    cri.await_agent(&container).await?;
    let write =
        format!("dd if=/dev/urandom of=/dev/vda bs=1M seek={AT} count={COUNT} conv=fsync 2>&1");
    cri.shell(&container, &write).await?;
    let written = sum_in_guest(&cri, &container).await?;
    let running = refusal(&node).await?;
    ensure!(running.code() == Code::FailedPrecondition, "{running:?}");
    ensure!(
        running.message().contains("stop the machine"),
        "{running:?}"
    );
    cri.stop_pod(&sandbox).await?;
    cri.remove_pod(&sandbox).await?;
    ensure!(copies(&stack)?.is_empty());

    // A daemon that is killed in the middle leaves nothing, and the client continues.
    let file = stack.dir().join("fetched.qcow2");
    let mut events = export(&node, &file).await?;
    let part = read(&mut events, 5 * MIB).await?;
    fs::write(&file, &part.bytes)?;
    ensure!(copies(&stack)?.len() == 1);
    stack.kill("vmlet", Signal::SIGKILL).await?;
    stack.restart("vmlet")?;
    let cri = stack.cri().await?;
    let node = stack.node().await?;
    cri.await_ready().await?;
    await_copies(&stack, 0).await?;
    let mut events = export(&node, &file).await?;
    let more = read(&mut events, 5 * MIB).await?;
    ensure!(more.offset == part.bytes.len() as u64, "{}", more.offset);
    drop(events);
    let received = [part.bytes, more.bytes].concat();
    fs::write(&file, &received)?;

    // A machine gets the disk while the copy is sent.
    let second = pod("second", &stack);
    let sandbox = cri.run(second.sandbox()).await?;
    let mut events = export(&node, &file).await?;
    let some = read(&mut events, 1).await?;
    ensure!(some.offset == received.len() as u64, "{}", some.offset);
    let container = Box::pin(cri.create(&sandbox, second.container(&image, 0), second.sandbox()));
    let container = container.await?;
    let rest = read(&mut events, usize::MAX).await?;
    cri.start(&container).await?;
    let all = [received, some.bytes, rest.bytes].concat();
    fs::write(&file, &all)?;
    ensure!(rest.sum == Some(sum_of(&file)?), "{:?}", rest.sum);
    let fetched = sum_in_file(&file)?;
    ensure!(fetched == written, "the guest wrote something else");
    await_text(&second.log(0), "VMLET-GUEST-READY", BOOT).await?;
    cri.await_agent(&container).await?;
    ensure!(sum_in_guest(&cri, &container).await? == written);
    cri.stop_pod(&sandbox).await?;
    cri.remove_pod(&sandbox).await?;

    // The guest has written since: the daemon sends the disk from its first byte. A deletion ends the export.
    let mut events = export(&node, &file).await?;
    let again = read(&mut events, 1).await?;
    ensure!(again.offset == 0, "{}", again.offset);
    let delete = Kind::DeleteDisk(v1::DeleteDisk {});
    node.done(&uid(2), VM, delete, TASK).await?;
    let ended = read(&mut events, usize::MAX).await;
    let ended = ended.err().context("the export of a deleted disk")?;
    ensure!(ended.code() == Code::NotFound, "{ended:?}");
    await_copies(&stack, 0).await?;
    fs::remove_file(file)?;
    stack.await_clean().await?;
    stack.down()
}
