//! Measures the root disks of virtual machines on a node: made by a task, read and sent by clients of the node
//! API.
//!
//! Invariant: what is compared takes turns; the first round is not counted. No machine starts. curl reads a
//! file of the same size from the stack's web server, and keeps it as the client of an export does.
//! Failure: the task, the transfer or the command that failed.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use e2e::bench::{Stack, text};
use e2e::samples::Samples;
use e2e::{Cri, NodeApi, uid};
use nodeapi::v1::upload_event::Event as Sent;
use nodeapi::v1::upload_request::Part;
use nodeapi::v1::{self, export_event::Event, provision::Mode, run_task_request::Kind};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::files::{self, Files};

const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";
/// Virtual sizes of images, in GiB.
const SIZES: [u64; 3] = [1, 10, 40];
/// Bytes in these images.
const CONTENT: usize = 64 << 20;
/// Bytes in the disk that is read, and in the file that is sent.
const TRANSFER: usize = 256 << 20;
/// Bytes of the file that differ in each round.
const MARK: std::ops::Range<usize> = 4096..4100;
/// Bytes of a message.
const CHUNK: usize = 1 << 20;
const TASK: Duration = Duration::from_secs(300);

/// `count` disks of each kind from each image.
pub(crate) async fn provision(
    stack: &Stack,
    cri: &Cri,
    files: &Files,
    count: u32,
) -> Result<Samples> {
    let node = stack.node().await?;
    let name = |size: u64| format!("disk-{size}.qcow2");
    for size in SIZES {
        files::write_qcow2(&files.path(&name(size)), CONTENT, size << 30)?;
        cri.pull(&files.image(&name(size)))
            .await
            .context("PullImage")?;
    }
    let mut samples = Samples::default();
    let mut tasks = Tasks::default();
    for number in 0..=count {
        for size in SIZES {
            for (mode, kind) in [(Mode::Linked, "linked"), (Mode::Direct, "direct")] {
                let image = files.image(&name(size));
                let took = tasks.made(&node, &image, mode).await?;
                if number > 0 {
                    samples.time(format!("{kind}_{size}"), took);
                }
            }
        }
    }
    for size in SIZES {
        cri.remove_image(&files.image(&name(size))).await?;
    }
    Ok(samples)
}

/// Tasks have distinct UIDs.
#[derive(Default)]
struct Tasks(u32);

impl Tasks {
    fn next(&mut self) -> String {
        self.0 += 1;
        uid(self.0)
    }

    /// Makes a disk and removes it; the time of the former.
    async fn made(&mut self, node: &NodeApi, image: &str, mode: Mode) -> Result<Duration> {
        let task = self.next();
        let took = node.timed(&task, VM, disk(image, mode), TASK).await;
        let took = took.context("Provision")?;
        node.forget(&task).await?;
        self.remove(node).await?;
        Ok(took)
    }

    async fn remove(&mut self, node: &NodeApi) -> Result<()> {
        let task = self.next();
        let delete = Kind::DeleteDisk(v1::DeleteDisk {});
        node.timed(&task, VM, delete, TASK).await?;
        Ok(node.forget(&task).await?)
    }
}

fn disk(image: &str, mode: Mode) -> Kind {
    Kind::Provision(v1::Provision {
        image: image.to_owned(),
        mode: mode.into(),
        vm_name: "default/vm".to_owned(),
        ..v1::Provision::default()
    })
}

/// `count` exports and uploads, each beside curl.
pub(crate) async fn transfer(
    stack: &Stack,
    cri: &Cri,
    files: &Files,
    count: u32,
) -> Result<Samples> {
    let node = stack.node().await?;
    let served = "transfer.qcow2";
    files::write_qcow2(&files.path(served), TRANSFER, 1 << 30)?;
    let image = files.image(served);
    cri.pull(&image).await.context("PullImage")?;
    let mut tasks = Tasks::default();
    let task = tasks.next();
    node.timed(&task, VM, disk(&image, Mode::Direct), TASK)
        .await?;
    node.forget(&task).await?;
    let target = files.path("received");
    let url = files.url(served);
    let copy = text(&target)?;
    let curl = format!("curl --silent --fail --output {copy} {url}; sync {copy}; sha256sum {copy}");
    let sent = files.path("sent.img");
    files::write(&sent, TRANSFER)?;
    let mut bytes = fs::read(&sent)?;
    let mut samples = Samples::default();
    for number in 0..=count {
        let begun = Instant::now();
        export(&node, &target).await.context("ExportDisk")?;
        let exported = begun.elapsed();
        fs::remove_file(&target)?;
        // The node has no image with these bytes.
        bytes[MARK].copy_from_slice(&number.to_be_bytes());
        fs::write(&sent, &bytes)?;
        let sum = files::run(Command::new("sha256sum").arg(&sent))?;
        let sum = sum.split_whitespace().next().context("a sum")?;
        let begun = Instant::now();
        let uploaded = upload(&node, number, &bytes, sum).await;
        let uploaded = uploaded.context("UploadImage").map(|()| begun.elapsed())?;
        cri.remove_image(&name_of_upload(number)).await?;
        let begun = Instant::now();
        files::run(Command::new("bash").args(["-o", "pipefail", "-ec", &curl]))?;
        let fetched = begun.elapsed();
        fs::remove_file(&target)?;
        if number > 0 {
            samples.time("export", exported);
            samples.time("upload", uploaded);
            samples.time("curl", fetched);
        }
    }
    tasks.remove(&node).await?;
    cri.remove_image(&image).await?;
    Ok(samples)
}

/// Receives the disk, with the digest of what was received.
async fn export(node: &NodeApi, target: &Path) -> Result<()> {
    let request = v1::ExportDiskRequest {
        vm_uid: VM.to_owned(),
        ..v1::ExportDiskRequest::default()
    };
    let mut events = node.node.clone().export_disk(request).await?.into_inner();
    let mut file = File::create(target)?;
    let announced = loop {
        let event = events.message().await?.context("the export ended")?;
        match event.event {
            Some(Event::Data(data)) => file.write_all(&data)?,
            Some(Event::End(end)) => break end.sha256,
            _ => {}
        }
    };
    file.sync_all()?;
    let received = files::run(Command::new("sha256sum").arg(target))?;
    let received = received.split_whitespace().next();
    ensure!(
        received == Some(announced.as_str()),
        "{received:?} is not {announced}"
    );
    let request = v1::ForgetExportRequest {
        vm_uid: VM.to_owned(),
        ..v1::ForgetExportRequest::default()
    };
    node.node.clone().forget_export(request).await?;
    Ok(())
}

fn name_of_upload(number: u32) -> String {
    format!("vmlet.dev/upload.invalid/default/bench:{number}")
}

async fn upload(node: &NodeApi, number: u32, bytes: &[u8], sum: &str) -> Result<()> {
    let (parts, requests) = mpsc::channel(4);
    let begin = Part::Begin(v1::UploadBegin {
        name: name_of_upload(number),
        size_bytes: bytes.len() as u64,
        sha256: sum.to_owned(),
    });
    let part = Some(begin);
    parts.send(v1::UploadRequest { part }).await?;
    let mut parts = Some(parts);
    let requests = ReceiverStream::new(requests);
    let mut events = node.node.clone().upload_image(requests).await?.into_inner();
    loop {
        let event = events.message().await?.context("the upload ended")?;
        match event.event {
            Some(Sent::Offset(0)) => {
                let parts = parts.take().context("requested twice")?;
                for chunk in bytes.chunks(CHUNK) {
                    let part = Some(Part::Data(chunk.to_vec()));
                    parts.send(v1::UploadRequest { part }).await?;
                }
            }
            Some(Sent::Offset(offset)) => bail!("the node has {offset} bytes already"),
            Some(Sent::Image(_)) => return Ok(()),
            _ => {}
        }
    }
}
