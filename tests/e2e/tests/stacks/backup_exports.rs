//! Backups that clients fetch from the node, each as one file.
//!
//! Invariant: what a client has received is what the guest had at the backup, and a client continues after a kill of the
//! daemon.
//! Failure: the offset, the sum, or what `qemu-img` finds.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use e2e::{Stack, program};
use nodeapi::v1;
use tonic::Status;

use crate::backups::{AT, CHANGED, NAME, VM, object};
use crate::exports::{Fetched, await_copies, read, sum_of};

const MIB: u64 = 1 << 20;
/// What a client has when it leaves.
const PART: usize = 5 << 20;

fn file(stack: &Stack) -> PathBuf {
    stack.dir().join("fetched.qcow2")
}

/// The next bytes of a backup, for a client that has what is in the file.
async fn continued(
    stack: &Stack,
    number: u32,
    target: &str,
    most: usize,
) -> Result<Result<Fetched, Status>> {
    let received = file(stack);
    let length = fs::metadata(&received).map_or(0, |is| is.len());
    let request = v1::ExportBackupRequest {
        vm_uid: VM.to_owned(),
        backup_uid: object(number),
        target: target.to_owned(),
        vm_name: NAME.to_owned(),
        sha256: String::new(),
        received_bytes: length,
        received_sha256: match length {
            0 => String::new(),
            _ => sum_of(&received)?,
        },
    };
    let node = stack.node().await?;
    Ok(match node.node.clone().export_backup(request).await {
        Ok(events) => read(&mut events.into_inner(), most).await,
        Err(status) => Err(status),
    })
}

/// A client receives a part of a backup, and leaves.
pub(crate) async fn begin(stack: &Stack, number: u32, target: &str) -> Result<()> {
    let part = continued(stack, number, target, PART).await??;
    fs::write(file(stack), part.bytes)?;
    Ok(())
}

/// It receives the rest. The node keeps nothing of it.
pub(crate) async fn complete(stack: &Stack, number: u32, target: &str) -> Result<PathBuf> {
    let file = file(stack);
    let part = fs::read(&file).unwrap_or_default();
    let rest = continued(stack, number, target, usize::MAX).await??;
    ensure!(rest.offset == part.len() as u64, "{}", rest.offset);
    fs::write(&file, [part, rest.bytes].concat())?;
    ensure!(rest.sum == Some(sum_of(&file)?), "{:?}", rest.sum);
    let request = v1::ForgetExportRequest {
        vm_uid: VM.to_owned(),
        backup_uid: object(number),
        ..v1::ForgetExportRequest::default()
    };
    let node = stack.node().await?;
    node.node.clone().forget_export(request).await?;
    await_copies(stack, 0).await?;
    Ok(file)
}

/// The words with which the node refuses a backup.
pub(crate) async fn refusal(stack: &Stack, number: u32, target: &str) -> Result<String> {
    match continued(stack, number, target, usize::MAX).await? {
        Ok(_) => anyhow::bail!("backup {number} was sent"),
        Err(status) => Ok(status.message().to_owned()),
    }
}

/// The sum of what the guest wrote, in a file that was fetched.
pub(crate) fn sum_in(file: &Path) -> Result<String> {
    let raw = file.with_extension("raw");
    qemu_img(&["check", "-q", "-f", "qcow2"], &[file])?;
    qemu_img(&["convert", "-f", "qcow2", "-O", "raw"], &[file, &raw])?;
    let mut bytes = vec![0; usize::try_from(CHANGED * MIB)?];
    File::open(&raw)?.read_exact_at(&mut bytes, u64::from(AT) * MIB)?;
    fs::write(&raw, bytes)?;
    let sum = sum_of(&raw)?;
    fs::remove_file(raw)?;
    Ok(sum)
}

/// Refuses a file that has other bytes than the disk of a machine that is off.
pub(crate) fn compare(stack: &Stack, file: &Path, vm: &str) -> Result<()> {
    let disk = stack.dir().join("state/disks").join(vm).join("root.qcow2");
    let compare = ["compare", "-q", "-f", "qcow2", "-F", "qcow2"];
    qemu_img(&compare, &[file, &disk])
}

fn qemu_img(arguments: &[&str], files: &[&Path]) -> Result<()> {
    let output = program::output(Command::new("qemu-img").args(arguments).args(files))?;
    ensure!(output.status.success(), "{output:?}");
    Ok(())
}
