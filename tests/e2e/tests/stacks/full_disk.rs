//! A state directory that a guest fills, and that has space again.
//!
//! Invariant: the directory is a file system of its own, of 3 GiB on a loop device, under the real
//! daemons, libvirt and QEMU. No guest is lost: the one that writes stands still until there is space,
//! and then has written every byte.
//! Failure: the step is named; the file system goes with the test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{LoopDevice, PodOptions, Stack, await_text, eventually, in_time, program};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use nix::sys::statvfs::statvfs;

const MIB: u64 = 1 << 20;
/// In MiB: images and new disks leave 1 GiB free.
const SIZE: u64 = 3072;
/// What the guest finds free, and what it writes.
const FREE: u64 = 250;
const WRITTEN: u64 = 400;
const SOON: Duration = Duration::from_secs(180);
const BOOT: Duration = Duration::from_secs(300);
/// Those that have files in the directory, in the order in which they start.
const PROGRAMS: [&str; 3] = ["libvirtd", "vmlet-tapmanager", "vmlet"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn a_guest_that_fills_the_disk_of_the_node_continues_when_there_is_space() -> Result<()> {
    let stack = Stack::up()?;
    let image = stack.image()?.to_owned();
    let cri = stack.cri().await?;
    cri.await_ready().await?;
    cri.pull(&image).await?;
    let state = SmallState::under(&stack).await.context("file system")?;
    let cri = stack.cri().await?;
    cri.await_ready().await?;
    let mut writer = PodOptions::named("writer", &stack);
    let size = ("vmlet.dev/root-volume-size".to_owned(), "2Gi".to_owned());
    writer.annotations = [size].into();
    let other = PodOptions::named("other", &stack);
    let (_, writing) = cri.boot(&writer, &image).await?;
    let (other, stopped) = cri.boot(&other, &image).await?;
    for id in [&writing, &stopped] {
        in_time(BOOT, "a guest that takes commands", cri.await_agent(id)).await?;
    }
    state.fill()?;

    // Beyond the file system of the image.
    let line = format!(
        "tr '\\0' x </dev/zero | dd of=/dev/vda bs=1M seek=100 count={WRITTEN} iflag=fullblock conv=fsync \
         2>/tmp/said; echo $? >/tmp/code"
    );
    let command = format!(
        "setsid sh -c \"{}\" >/dev/null 2>&1 &",
        line.replace('$', "\\$")
    );
    cri.shell(&writing, &command).await?;
    let log = stack.dir().join("log/vmlet.log");
    await_text(&log, "guest paused by QEMU: its disk failed", BOOT).await?;

    // The daemon serves what needs no space, also one that starts now.
    stack.kill("vmlet", Signal::SIGKILL).await?;
    stack.restart("vmlet").context("start on a full disk")?;
    cri.await_ready().await?;
    ensure!(cri.containers().await?.len() == 2, "a machine is lost");
    in_time(SOON, "the end of a pod on a full disk", async {
        cri.stop(&stopped, 5).await?;
        cri.stop_pod(&other).await?;
        cri.remove_pod(&other).await?;
        Ok(())
    })
    .await?;
    let state_of = |domain: String| stack.virsh(&["domstate", "--reason", domain.trim()]);
    let domains = stack.virsh(&["list", "--name"])?;
    let why = state_of(domains)?;
    ensure!(why.contains("I/O error"), "the guest is {why:?}");

    state.make_room()?;
    eventually(BOOT, "the end of the guest's writing", || async {
        let code = cri.shell(&writing, "cat /tmp/code").await?;
        ensure!(
            code == "0",
            "{code}: {}",
            cri.shell(&writing, "cat /tmp/said").await?
        );
        Ok(())
    })
    .await?;
    let read =
        format!("dd if=/dev/vda bs=1M skip=100 count={WRITTEN} 2>/dev/null | tr -d x | wc -c");
    let others = cri.shell(&writing, &read).await?;
    ensure!(
        others == "0",
        "{others} bytes are not those that the guest wrote"
    );
    for sandbox in cri.sandboxes().await? {
        cri.stop_pod(&sandbox.id).await?;
        cri.remove_pod(&sandbox.id).await?;
    }
    stack.await_clean().await?;
    drop(state);
    stack.down()
}

/// A file system in the place of the stack's state directory.
struct SmallState {
    path: PathBuf,
    /// Goes after the mount.
    _device: LoopDevice,
}

impl SmallState {
    /// Moves the state of a stack that has no pods yet.
    async fn under(stack: &Stack) -> Result<Self> {
        let path = stack.dir().join("state");
        for program in PROGRAMS.into_iter().rev() {
            stack.kill(program, Signal::SIGTERM).await?;
        }
        let device = LoopDevice::new(SIZE)?;
        run(Command::new("mkfs.ext4")
            .args(["-q", "-m", "0"])
            .arg(device.path()))?;
        let scratch = tempfile::tempdir()?;
        mount_at(&device, scratch.path())?;
        let copied = run(Command::new("cp")
            .arg("-a")
            .arg(path.join("."))
            .arg(scratch.path()));
        umount2(scratch.path(), MntFlags::empty())?;
        copied?;
        mount_at(&device, &path)?;
        let state = Self {
            path,
            _device: device,
        };
        for program in PROGRAMS {
            stack.restart(program)?;
        }
        Ok(state)
    }

    /// Leaves [`FREE`] MiB.
    fn fill(&self) -> Result<()> {
        let status = statvfs(&self.path)?;
        let free = status.blocks_available() * status.fragment_size();
        let most = free.checked_sub(FREE * MIB).context("too much is used")?;
        let file = fs::File::create(self.filler())?;
        let flags = nix::fcntl::FallocateFlags::empty();
        nix::fcntl::fallocate(&file, flags, 0, i64::try_from(most)?)?;
        Ok(())
    }

    fn make_room(&self) -> Result<()> {
        Ok(fs::remove_file(self.filler())?)
    }

    fn filler(&self) -> PathBuf {
        self.path.join("filler")
    }
}

impl Drop for SmallState {
    fn drop(&mut self) {
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
    }
}

fn mount_at(device: &LoopDevice, place: &Path) -> Result<()> {
    let kind = Some("ext4");
    let data = None::<&str>;
    mount(Some(device.path()), place, kind, MsFlags::empty(), data)
        .with_context(|| format!("mount at {}", place.display()))
}

fn run(command: &mut Command) -> Result<()> {
    let output = program::output(command)?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {said}");
    Ok(())
}
