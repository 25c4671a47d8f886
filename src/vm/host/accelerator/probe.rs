//! Runs a guest of four instructions, to prove that guests execute at an acceptable speed.
//!
//! Invariant: QEMU runs as the user that will run the real guests, in one group that this user has;
//! nothing of it is left when the probe returns.
//! Failure: a [`Verdict::Failed`] with a reason that a person can act on.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use nix::unistd::{Gid, Uid, User};
use serde::{Deserialize, Serialize};
use tokio::fs::{self, File};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::{Accelerator, Host};
use crate::helper::{Child, Start, Stream, Streams};

/// `mov al,0x2a; out 0xf4,al; 1: hlt; jmp 1b`
const CODE: [u8; 7] = [0xb0, TOKEN, 0xe6, 0xf4, 0xf4, 0xeb, 0xfd];
const TOKEN: u8 = 0x2a;
/// How QEMU's debug exit device turns the token into an exit code.
const EXECUTED: i32 = ((TOKEN as i32) << 1) | 1;
/// The firmware does not boot from a disk of a single sector.
const DISK_SIZE: u64 = 1 << 20;
/// Longest complaint of QEMU that is read.
const MAX_STDERR: u64 = 16 << 10;
/// A guest under KVM that is this quick is not compared with anything.
pub(super) const QUICK: Duration = Duration::from_secs(1);
/// Time for a killed probe to be gone.
const REAP: Duration = Duration::from_secs(2);

/// What the probe found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "lowercase")]
pub(super) enum Verdict {
    /// The guest ran.
    Executed {
        /// A sentence.
        reason: String,
    },
    /// It did not.
    Failed {
        /// Half a sentence.
        reason: String,
    },
}

/// Runs the guest under KVM. If that is slow, it is run translated too: a device that is itself
/// emulated executes guests, at a thirtieth of the speed that they would have without it.
pub(super) async fn kvm(host: &Host) -> Verdict {
    let took = match time(host, Accelerator::Kvm).await {
        Ok(took) => took,
        Err(reason) => return Verdict::Failed { reason },
    };
    if took > host.quick
        && let Ok(translated) = time(host, Accelerator::Tcg).await
        && translated < took
    {
        let device = host.device().display();
        let took = took.as_millis();
        let translated = translated.as_millis();
        return Verdict::Failed {
            reason: format!(
                "a probe guest took {took} ms with {device} and {translated} ms without it"
            ),
        };
    }
    Verdict::Executed {
        reason: format!("a probe guest executed within {} ms", took.as_millis()),
    }
}

/// Runs the guest and returns how long it took to execute, QEMU's own start included.
pub(super) async fn time(host: &Host, accelerator: Accelerator) -> Result<Duration, String> {
    let disk = host.cache_dir.join("accelerator-probe.raw");
    let opened = write_disk(&disk)
        .await
        .map_err(|e| format!("the probe's disk {} cannot be written: {e}", disk.display()))?;
    let begun = Instant::now();
    let gid = group(host).await;
    let streams = Streams {
        stdin: Stream::Open(opened.into()),
        stdout: Stream::Null,
        stderr: Stream::Pipe,
    };
    let start = Start::new(command(host, accelerator, gid), streams);
    let result = match start.begin().await {
        Ok(mut child) => judge(host, watch(&mut child, host.deadline).await),
        Err(e) => Err(format!("{} cannot be run: {e}", host.emulator.display())),
    };
    // The next probe writes it again.
    let _ = fs::remove_file(&disk).await;
    result.map(|()| begun.elapsed())
}

/// The disk comes as standard input: so QEMU's user needs no way into our directories.
async fn write_disk(path: &Path) -> io::Result<std::fs::File> {
    let mut sector = [0; 512];
    sector[..CODE.len()].copy_from_slice(&CODE);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    // A symbolic link at this path must not be followed.
    if let Err(e) = fs::remove_file(path).await
        && e.kind() != io::ErrorKind::NotFound
    {
        return Err(e);
    }
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(path)
        .await?;
    file.write_all(&sector).await?;
    file.set_len(DISK_SIZE).await?;
    file.flush().await?;
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    file.set_permissions(readable).await?;
    Ok(File::open(path).await?.into_std().await)
}

/// The device's group if QEMU's user is in it, else the user's own. libvirt gives QEMU all of the
/// user's groups; a child of ours gets one, so it gets the one that matters.
async fn group(host: &Host) -> u32 {
    let uid = host.uid;
    let own = host.gid;
    let device = host.device().to_owned();
    let find = move || {
        let wanted = std::fs::metadata(device).ok()?.gid();
        let user = User::from_uid(Uid::from_raw(uid)).ok()??;
        let name = std::ffi::CString::new(user.name).ok()?;
        let groups = nix::unistd::getgrouplist(&name, Gid::from_raw(own)).ok()?;
        groups.contains(&Gid::from_raw(wanted)).then_some(wanted)
    };
    let found = tokio::task::spawn_blocking(find).await;
    found.ok().flatten().unwrap_or(own)
}

fn command(host: &Host, accelerator: Accelerator, gid: u32) -> Command {
    let mut command = Command::new(&host.emulator);
    command
        .args(["-accel", accelerator.as_str()])
        // The CPU that guests get: some devices break only on its features.
        .args(["-cpu", if accelerator == Accelerator::Kvm { "host" } else { "max" }])
        .args(["-machine", "q35", "-m", "32", "-display", "none"])
        .args(["-nodefaults", "-no-user-config"])
        .args(["-drive", "file=/dev/stdin,format=raw,if=virtio,readonly=on"])
        .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"])
        .env_clear()
        .current_dir("/")
        .uid(host.uid)
        .gid(gid);
    command
}

/// Waits for the end; `None` when it did not come in time and was brought about.
async fn watch(child: &mut Child, deadline: Duration) -> Option<(io::Result<ExitStatus>, String)> {
    let stderr = child.pipes.stderr.take();
    let end = async {
        let complaint = async {
            let mut bytes = Vec::new();
            if let Some(stderr) = stderr {
                // What cannot be read is only missing from a message.
                let _ = stderr.take(MAX_STDERR).read_to_end(&mut bytes).await;
            }
            String::from_utf8_lossy(&bytes).into_owned()
        };
        tokio::join!(child.wait(), complaint)
    };
    let ended = timeout(deadline, end).await.ok();
    if ended.is_none() {
        // A process that cannot be killed is left to the runtime to reap.
        child.kill();
        let _ = timeout(REAP, child.wait()).await;
    }
    ended
}

fn judge(host: &Host, end: Option<(io::Result<ExitStatus>, String)>) -> Result<(), String> {
    let device = host.device().display();
    match end {
        None => Err(format!(
            "{device} opens, but a probe guest did not execute within {} s",
            host.deadline.as_secs()
        )),
        Some((Err(e), _)) => Err(format!("the probe guest was lost: {e}")),
        Some((Ok(status), _)) if status.code() == Some(EXECUTED) => Ok(()),
        Some((Ok(status), complaint)) => {
            let line = complaint.lines().find(|line| !line.trim().is_empty());
            Err(format!(
                "QEMU cannot use {device} as user {}: {} ({status})",
                host.uid,
                printable(line.unwrap_or("it says nothing")),
            ))
        }
    }
}

fn printable(line: &str) -> String {
    let kept = line.trim().chars().take(300);
    kept.map(|c| if c.is_control() { ' ' } else { c }).collect()
}
