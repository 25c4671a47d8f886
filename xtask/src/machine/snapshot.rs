//! The instant after the first boot: a disk and a memory from which every run begins.
//!
//! Invariant: both belong to the same instant, are complete before the stamp is written, and are
//! never written to again.
//! Failure: the boot's own: `booted/console.log` and the failed units are named. The image stays.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::agent::Agent;
use super::power::{end, fresh_run, monitor, overlay, spawn};
use super::{Os, PATIENCE, qemu};
use crate::stamp::Stamp;

/// Raised when the way of booting changes in a manner that the stamp cannot see.
const RECIPE: &str = "2";

/// Its folder beside that of a run, with the disk of the first boot, the memory, and the stamp.
pub(super) const FOLDER: &str = "booted";
pub(super) const MEMORY: &str = "memory.zst";

/// A first boot under emulation, on a host that does other things as well.
const BOOT: Duration = Duration::from_secs(1800);

/// What makes it a machine as users have it; it fails with the name of what is missing.
const CHECKS: &str = r#"
fail() { echo "$1" >&2; exit 1; }
[ "$(cat /proc/1/comm)" = systemd ] || fail "PID 1 is not systemd"
[ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ] || fail "cgroup v2 is not mounted"
[ "$(cat /sys/module/apparmor/parameters/enabled)" = Y ] || fail "AppArmor is off"
aa-status --profiled >/dev/null || fail "AppArmor has no profiles"
case $(cat /sys/kernel/security/lsm) in *landlock*) ;; *) fail "Landlock is off" ;; esac
for module in tun vhost_net virtiofs bridge nf_tables; do
    modprobe "$module" || fail "the kernel has no $module"
done
for unit in containerd libvirtd; do
    systemctl is-active --quiet "$unit.service" "$unit.socket" || fail "$unit is not active"
done
virsh --connect qemu:///system version >/dev/null || fail "libvirt does not answer"
sync
"#;

/// A KVM machine without a processor that stays open. Linux rewrites an instruction of its scheduler
/// when the first KVM machine opens and when the last one closes, and the emulator may execute what
/// it translated before: the kernel of the machine panics (`Oops: int3` in `__schedule`). The probes
/// of a run therefore never open the first one. Without the module there is no such machine.
const HOLD_KVM: &str = r#"
[ -e /dev/kvm ] || exit 0
systemd-run --quiet --unit=open-kvm --property=Type=notify --property=NotifyAccess=all perl -e '
    use Fcntl;
    sysopen(my $kvm, "/dev/kvm", O_RDWR) or die "failed to open /dev/kvm: $!";
    my $create = 0xAE01;
    ioctl($kvm, $create, 0) or die "failed to create a machine: $!";
    system("systemd-notify", "--ready") == 0 or die "failed to notify systemd";
    sleep;
'
"#;

/// Units that failed. Not scopes: that of the shell's session fails on a slow host, and the shell
/// works.
const FAILED: &str = "systemctl list-units --failed --plain --no-legend \
                      --type=service,socket,mount,swap,target,timer";

/// Builds image and snapshot unless they are there and made from the same inputs.
pub(super) fn ensure(os: Os) -> Result<()> {
    let system = os.system();
    let folder = os.folder();
    let built = system.ensure()?;
    let state = if built { "built" } else { "up to date" };
    println!("machine: {} is {state}", system.image.display());
    let booted = folder.join(FOLDER);
    let stamp = Stamp::new(booted.join("snapshot.stamp"))
        .value("recipe", RECIPE)
        .value("hardware", &qemu::identity()?)
        .value("checks", CHECKS)
        .value("kvm", HOLD_KVM)
        .value("image", &identity(&system.image)?)
        .file(&system.stamp())?;
    if stamp.is_fresh(&[booted.join(qemu::DISK), booted.join(MEMORY)]) {
        return Ok(());
    }
    println!(
        "machine: the first boot of {}, which takes minutes",
        os.name()
    );
    let started = Instant::now();
    end(&booted)?;
    // With the old stamp, so that half a snapshot has none.
    fresh_run(&booted)?;
    let saved = first_boot(&booted);
    let ended = end(&booted);
    saved.and(ended)?;
    println!("machine: booted in {} s", started.elapsed().as_secs());
    stamp.write()
}

/// The same inputs make another image each time, and the disk of the snapshot fits one image only.
fn identity(image: &Path) -> Result<String> {
    let modified = fs::metadata(image)
        .and_then(|metadata| metadata.modified())
        .with_context(|| format!("failed to look at {}", image.display()))?;
    Ok(format!("{modified:?}"))
}

fn first_boot(run: &Path) -> Result<()> {
    overlay("../machine.qcow2", run)?;
    let mut child = spawn(&mut qemu::boot(), run)?;
    let mut monitor = monitor(run, &mut child)?;
    let mut agent = Agent::connect(&run.join(qemu::AGENT), BOOT)
        .context("failed to boot: booted/console.log says how far it came")?;
    let state = agent.run("systemctl is-system-running --wait", BOOT)?;
    let state = String::from_utf8_lossy(&state.stdout).trim().to_owned();
    let failed = agent.output(FAILED, PATIENCE)?;
    ensure!(
        matches!(state.as_str(), "running" | "degraded") && failed.is_empty(),
        "the machine is {state} after its boot: {failed}"
    );
    agent.output(CHECKS, BOOT).context("the machine")?;
    agent.output(HOLD_KVM, PATIENCE).context("the machine")?;
    monitor.save(MEMORY)
}
