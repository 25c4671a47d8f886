//! Backups of a machine that runs, in a bucket of a real server: full, incremental, over a daemon and a server that are
//! killed, verified, exported, restored to a machine of its own, and removed.
//!
//! Invariant: what the guest of the restored machine reads is what the guest had written before the backup. Nothing but the
//! server and the file of the node has the secret.
//! Failure: the test names the task, the crash point, or what is in the bucket.

use std::fs;

use anyhow::{Context, Result, ensure};
use e2e::{BucketServer, Stack};
use nix::sys::signal::Signal;
use nodeapi::v1::{self, run_task_request::Kind};

use crate::backup_exports;
use crate::backups::{NAME, NEW, Tasks, VM, boot, disk, object, shell, sum, write};
use crate::linked_disk::IMAGE_SUM;

const TARGET: &str = "away";
/// A target whose bucket does not exist.
const ABSENT: &str = "absent";
/// What the guest writes at first, in MiB: more than one part of an upload.
const WRITTEN: u64 = 24;

fn backup(number: u32, target: &str) -> Kind {
    Kind::Backup(v1::Backup {
        uid: object(number),
        target: target.to_owned(),
        vm_name: NAME.to_owned(),
        full: false,
        quiesce_seconds: 0,
        most_increments: 0,
    })
}

fn verify(number: u32) -> Kind {
    Kind::VerifyBackup(v1::VerifyBackup {
        uid: object(number),
        target: TARGET.to_owned(),
        vm_name: NAME.to_owned(),
        sha256: String::new(),
    })
}

fn restore(number: u32) -> Kind {
    Kind::RestoreBackup(v1::RestoreBackup {
        uid: object(number),
        target: TARGET.to_owned(),
        source_vm_uid: VM.to_owned(),
        size_bytes: 0,
        vm_name: "default/restored".to_owned(),
        sha256: String::new(),
    })
}

fn delete(number: u32) -> Kind {
    Kind::DeleteBackup(v1::DeleteBackup {
        uid: object(number),
        target: TARGET.to_owned(),
        vm_name: NAME.to_owned(),
    })
}

/// Gives the daemon these targets beside its own.
async fn add_targets(stack: &Stack, targets: [String; 2]) -> Result<()> {
    let file = stack.dir().join("vmlet.toml");
    let settings = fs::read_to_string(&file)?;
    let own = "\n[backup]\ntargets = [";
    let more = targets.map(|target| format!("\"{target}\", ")).concat();
    let changed = settings.replace(own, &format!("{own}{more}"));
    ensure!(changed != settings, "{settings}");
    fs::write(&file, changed)?;
    stack.kill("vmlet", Signal::SIGTERM).await?;
    stack.restart("vmlet")
}

/// A task that fails in a way that a repetition may mend, with these words, and without the secret.
async fn fails(
    tasks: &mut Tasks<'_>,
    server: &BucketServer,
    kind: Kind,
    words: &str,
) -> Result<()> {
    let failed = tasks.end(VM, kind).await?;
    let said = &failed.message;
    ensure!(failed.transient && said.contains(words), "{failed:?}");
    ensure!(!said.contains(server.secret()), "{said}");
    ensure!(!said.contains("Signature="), "{said}");
    Ok(())
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_machine_is_backed_up_to_a_bucket_whose_server_dies() -> Result<()> {
    let stack = Stack::up()?;
    let mut server = BucketServer::new(&stack)?;
    let targets = [
        server.target(TARGET, server.bucket()),
        server.target(ABSENT, "not-made"),
    ];
    add_targets(&stack, targets).await?;
    let cri = stack.cri().await?;
    cri.await_ready().await?;
    let image = stack.image()?.to_owned();
    cri.pull(&image).await?;
    let mut tasks = Tasks::new(&stack);
    tasks.done(VM, disk(&image)?).await?;
    let (sandbox, container) = boot(&stack, VM, "first").await?;
    let image_sum = shell(&stack, &container, IMAGE_SUM).await?;

    // What an operator has to correct.
    fails(&mut tasks, &server, backup(1, TARGET), "failed to read").await?;
    server.start(&stack).await?;
    server.write_credentials("another one")?;
    fails(&mut tasks, &server, backup(1, TARGET), "are refused").await?;
    server.write_credentials(server.secret())?;
    fails(&mut tasks, &server, backup(1, ABSENT), "does not exist").await?;

    write(&stack, &container, WRITTEN).await?;
    let full = tasks.done(VM, backup(1, TARGET)).await?;
    let full = full.backup.context("a backup")?;
    ensure!(full.full && full.running, "{full:?}");
    write(&stack, &container, WRITTEN).await?;
    let points = [
        "part", "copied", "written", "noted", "renamed", "named", "kept",
    ];
    for (number, point) in (2..).zip(points) {
        let point = format!("backup.{point}");
        let kind = backup(number, TARGET);
        let killed = tasks.killed_at(&point, VM, kind).await;
        let killed = killed.with_context(|| format!("killed at {point}"))?;
        let done = killed.backup.context("a backup")?;
        ensure!(done.parent_uid == object(number - 1), "{point}: {done:?}");
        write(&stack, &container, 2).await?;
    }
    // Daemon and server die while parts are stored: a part of a backup is none.
    let last = 9;
    let written = write(&stack, &container, WRITTEN).await?;
    let cut = backup(last, TARGET);
    let task = tasks.die_at("backup.part", VM, &cut).await?;
    server.kill()?;
    let failed = tasks.revived(&task, VM, cut).await?;
    ensure!(
        failed.transient && failed.message.contains("failed to read"),
        "{failed:?}"
    );
    fails(&mut tasks, &server, verify(8), "failed to read").await?;
    server.start(&stack).await?;
    tasks.done(VM, backup(last, TARGET)).await?;
    // What the guest writes now is in no backup.
    write(&stack, &container, 1).await?;

    tasks.done(VM, verify(last)).await?;
    let file = server.object(VM, &format!("{}/0.qcow2", object(4)));
    let bytes = fs::read(&file)?;
    let mut changed = bytes.clone();
    let middle = changed.len() / 2;
    changed[middle] ^= 1;
    fs::write(&file, &changed)?;
    let spoiled = tasks.end(VM, verify(last)).await?;
    let words = format!("file 0.qcow2 of backup {}", object(4));
    ensure!(
        spoiled.message.contains(&words) && !spoiled.transient,
        "{spoiled:?}"
    );
    fs::write(&file, &bytes)?;

    let fetched = backup_exports::complete(&stack, last, TARGET).await?;
    let sum_of_it = backup_exports::sum_in(&fetched)?;
    ensure!(sum_of_it == written, "the file is not what was backed up");
    fs::remove_file(fetched)?;
    tasks.done(NEW, restore(last)).await?;
    let (other, restored) = boot(&stack, NEW, "restored").await?;
    ensure!(
        sum(&stack, &restored).await? == written,
        "it is not what was backed up"
    );
    let same = shell(&stack, &restored, IMAGE_SUM).await?;
    ensure!(same == image_sum, "the image differs");
    let cri = stack.cri().await?;
    for sandbox in [sandbox, other] {
        cri.stop_pod(&sandbox).await?;
        cri.remove_pod(&sandbox).await?;
    }

    let needed = tasks.end(VM, delete(8)).await?;
    ensure!(
        needed.transient && needed.message.contains("is based on it"),
        "{needed:?}"
    );
    let killed = tasks.killed_at("backup.unnamed", VM, delete(last)).await;
    killed.context("killed at backup.unnamed")?;
    for number in (1..last).rev() {
        tasks.done(VM, delete(number)).await?;
    }
    let rest = server.objects(VM)?;
    ensure!(rest == ["machine"], "{rest:?}");
    ensure!(
        !stack.log("vmlet").contains(server.secret()),
        "the secret is in the log"
    );
    for vm in [VM, NEW] {
        tasks.done(vm, Kind::DeleteDisk(v1::DeleteDisk {})).await?;
    }
    drop(server);
    stack.await_clean().await?;
    stack.down()
}
