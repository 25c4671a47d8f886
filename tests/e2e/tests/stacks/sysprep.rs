//! The CD-ROM with the answer files of Windows Setup.
//!
//! Invariant: a real QEMU boots with the CD-ROM. The kernel of the test guest has no driver for SATA, so
//! that the guest does not see it.
//! Failure: QEMU's command line, or the image, is named.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use e2e::{PodOptions, Stack};

const ANSWERS: &str = "<unattend xmlns=\"urn:schemas-microsoft-com:unattend\"/>";

#[tokio::test]
#[ignore = "needs root"]
async fn a_guest_has_its_answer_files_on_a_cd_rom() -> Result<()> {
    let stack = Stack::up()?;
    let cri = stack.cri().await?;
    let image = cri.await_image(&stack).await?;
    let mut pod = PodOptions::named("windows", &stack);
    let source = "configmap/config".to_owned();
    pod.annotations
        .insert("vmlet.dev/sysprep-source".to_owned(), source);
    let place = "/run/vmlet/sources/configmap/config";
    pod.mount_config(&stack, place, "unattend.xml", ANSWERS)?;
    let (sandbox, container) = cri.boot(&pod, &image).await?;
    cri.await_agent(&container).await?;
    let disks = cri.shell(&container, "ls -d /dev/vd?").await?;
    ensure!(disks == "/dev/vda", "{disks}");

    let seeds = stack.dir().join("state/seeds");
    let mut found = fs::read_dir(&seeds)?;
    let volume = found.next().context("no image")??.path();
    let bytes = fs::read(&volume)?;
    let holds = |text: &str| {
        bytes
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    };
    ensure!(
        holds(ANSWERS) && !holds("user-data"),
        "{}",
        volume.display()
    );
    let line = command_line(&volume)?;
    ensure!(line.contains("\"driver\":\"ide-cd\""), "{line}");
    cri.remove_pod(&sandbox).await?;
    stack.await_clean().await?;
    ensure!(!volume.exists(), "the image outlives its pod");
    stack.down()
}

/// That of the emulator with this disk.
fn command_line(disk: &Path) -> Result<String> {
    let disk = disk.to_str().context("a path")?;
    for entry in fs::read_dir("/proc")? {
        let line = fs::read(entry?.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains("qemu-system") && line.contains(disk) {
            return Ok(line);
        }
    }
    anyhow::bail!("no emulator has {disk}")
}
