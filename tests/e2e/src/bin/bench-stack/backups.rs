//! Measures backups of a running guest: a full one, and increments after changes of a known size.
//!
//! Invariant: what the guest writes does not compress, and is the same place each time. What is made in the target is
//! removed again.
//! Failure: a task that failed.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::bench::Stack;
use e2e::{NodeApi, uid};
use nodeapi::v1::{self, run_task_request::Kind};

use crate::samples::Samples;

const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1c";
const NAME: &str = "default/vm";
/// Of the stack's configuration.
const TARGET: &str = "local";
const TASK: Duration = Duration::from_secs(600);
/// Bytes of the disk.
const SIZE: u64 = 10 << 30;
/// What the guest changes between two backups, in MiB.
const CHANGED: u32 = 64;

/// Measures a full backup and `count` increments.
pub(crate) async fn measure(stack: &Stack, count: u32) -> Result<Samples> {
    let cri = stack.cri_with_image().await?;
    let node = stack.node().await?;
    let mut tasks = Tasks { node, next: 0 };
    let disk = v1::Provision {
        image: stack.image().to_owned(),
        size_bytes: SIZE,
        vm_name: NAME.to_owned(),
        ..v1::Provision::default()
    };
    tasks.run(Kind::Provision(disk)).await?;
    let mut pod = stack.pod("backups");
    let disk = ("vmlet.dev/vm-disk".to_owned(), VM.to_owned());
    pod.annotations.extend([disk]);
    let booted = stack.boot(&cri, &pod).await?.0;
    cri.await_agent(&booted.container).await?;
    let mut samples = Samples::default();
    let full = tasks.run(backup(0)).await?;
    samples.time("full", full.took);
    let changed = f64::from(CHANGED) * f64::from(1 << 20);
    for number in 1..=count {
        let write = format!(
            "dd if=/dev/urandom of=/dev/vda bs=1M seek=2048 count={CHANGED} conv=fsync,notrunc 2>&1"
        );
        cri.shell(&booted.container, &write).await?;
        let done = tasks.run(backup(number)).await?;
        let written = done.status.backup.context("a backup")?;
        ensure!(!written.full, "{written:?}");
        samples.time("incremental", done.took);
        let read = f64::from(u32::try_from(written.read_bytes >> 10)?) * 1024.0;
        samples.number("read", read / changed);
    }
    stack.remove(&cri, &booted.sandbox).await?;
    for number in (0..=count).rev() {
        let delete = v1::DeleteBackup {
            uid: object(number),
            target: TARGET.to_owned(),
            vm_name: NAME.to_owned(),
        };
        tasks.run(Kind::DeleteBackup(delete)).await?;
    }
    tasks.run(Kind::DeleteDisk(v1::DeleteDisk {})).await?;
    Ok(samples)
}

fn object(number: u32) -> String {
    uid(1_000_000 + number)
}

fn backup(number: u32) -> Kind {
    Kind::Backup(v1::Backup {
        uid: object(number),
        target: TARGET.to_owned(),
        vm_name: NAME.to_owned(),
        ..v1::Backup::default()
    })
}

/// Tasks, one after the other.
struct Tasks {
    node: NodeApi,
    next: u32,
}

/// A task that succeeded.
struct Done {
    took: Duration,
    status: v1::TaskStatus,
}

impl Tasks {
    async fn run(&mut self, kind: Kind) -> Result<Done> {
        self.next += 1;
        let task = uid(self.next);
        let took = self.node.timed(&task, VM, kind.clone(), TASK).await?;
        // Sent again, a task returns what it had.
        let status = self.node.send(&task, VM, kind).await?;
        self.node.forget(&task).await?;
        Ok(Done { took, status })
    }
}
