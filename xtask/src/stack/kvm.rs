//! Finds out whether this machine's KVM can run a guest, by booting one.
//!
//! Invariant: "usable" means that the guest's user space has spoken. Some nested hosts offer a
//! device that opens and even runs a boot sector, but no kernel.
//! Failure: every doubt counts as "not usable"; software emulation then serves.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::{run, workspace};

/// Long enough for a guest on real hardware, several times over.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The first line that the guest image's init prints.
const SIGN_OF_LIFE: &str = "Vmlet guest";
/// What QEMU prints when the kernel module gives up on a guest.
const SIGN_OF_DEATH: &str = "KVM internal error";

/// The answer for this machine, found once per boot.
pub(crate) fn is_usable() -> Result<bool> {
    if let Some(usable) = known()? {
        return Ok(usable);
    }
    // A machine that is busy for a moment is not to emulate for as long as it runs.
    let usable = boot_a_guest()? || boot_a_guest()?;
    let cache = cache();
    fs::write(&cache, line(usable)?).with_context(|| format!("write {}", cache.display()))?;
    Ok(usable)
}

/// The same, as far as it is known without a guest.
pub(crate) fn known() -> Result<Option<bool>> {
    if !Path::new("/dev/kvm").exists() {
        return Ok(Some(false));
    }
    let text = fs::read_to_string(cache()).unwrap_or_default();
    for usable in [true, false] {
        if text == line(usable)? {
            return Ok(Some(usable));
        }
    }
    Ok(None)
}

fn cache() -> PathBuf {
    workspace::target().join("guest/kvm.probe")
}

fn line(usable: bool) -> Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").context("read the boot id")?;
    Ok(format!("{} {usable}\n", boot.trim()))
}

fn boot_a_guest() -> Result<bool> {
    let drive = format!(
        "file={},format=qcow2,if=virtio",
        workspace::guest_image().display()
    );
    let mut qemu = run::command("qemu-system-x86_64");
    qemu.args([
        "-machine",
        "q35,accel=kvm",
        "-m",
        "128",
        "-nodefaults",
        "-display",
        "none",
    ]);
    qemu.args([
        "-snapshot",
        "-serial",
        "stdio",
        "-no-reboot",
        "-drive",
        &drive,
    ]);
    let mut child = qemu
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("run QEMU")?;
    let (sender, lines) = mpsc::channel();
    if let Some(stdout) = child.stdout.take()
        && let Some(stderr) = child.stderr.take()
    {
        forward(stdout, sender.clone());
        forward(stderr, sender);
    }
    let alive = wait_for_a_sign(&lines);
    // It may have ended by itself.
    let _ = child.kill();
    child.wait().context("collect QEMU")?;
    Ok(alive)
}

fn forward(stream: impl Read + Send + 'static, lines: mpsc::Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            if lines
                .send(String::from_utf8_lossy(&line).into_owned())
                .is_err()
            {
                return;
            }
        }
    });
}

fn wait_for_a_sign(lines: &mpsc::Receiver<String>) -> bool {
    let deadline = Instant::now() + TIMEOUT;
    while let Some(left) = deadline.checked_duration_since(Instant::now()) {
        match lines.recv_timeout(left) {
            Ok(line) if line.contains(SIGN_OF_LIFE) => return true,
            Ok(line) if line.contains(SIGN_OF_DEATH) => return false,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_guest_that_speaks_is_alive() {
        for (printed, want) in [
            (&["SYSLINUX", "Vmlet guest, Linux 6"][..], true),
            (
                &["SYSLINUX", "KVM internal error. Suberror: 1", "Vmlet guest"],
                false,
            ),
            (&["SYSLINUX"], false),
        ] {
            let (sender, lines) = mpsc::channel();
            printed
                .iter()
                .for_each(|line| sender.send((*line).to_owned()).unwrap());
            drop(sender);
            assert_eq!(wait_for_a_sign(&lines), want, "{printed:?}");
        }
    }
}
