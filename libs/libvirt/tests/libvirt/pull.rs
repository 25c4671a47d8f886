//! Disks that are pulled under a real QEMU, from a base that libvirt must leave alone.
//!
//! Invariant: the guest sits in the firmware; the disk's header says when it stands alone.
//! Failure: the deadline of [`ended`].

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use libvirt::harness::Libvirtd;
use libvirt::{BlockJob, Error, Event, Hypervisor, Libvirt, Settings};
use serde_json::Value;
use uuid::Uuid;

const TIMEOUT: Duration = Duration::from_secs(120);
const DISK: &str = "vda";
/// So slow that a pull is met in the middle.
const SLOW: u64 = 1 << 20;
const FAST: u64 = 256 << 20;

/// A user of QEMU that nothing else has.
const OWNER: u32 = 4_000_123;

fn tool(program: &str, arguments: &[&str]) -> Vec<u8> {
    let done = Command::new(program).args(arguments).output().unwrap();
    let words = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {arguments:?}: {words}");
    done.stdout
}

/// A base with data, and an overlay on it.
fn disks(folder: &Path) -> [String; 2] {
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    let names = ["base.qcow2", "root.qcow2"];
    let [base, root] = names.map(|name| folder.join(name).to_str().unwrap().to_owned());
    tool("qemu-img", &["create", "-q", "-f", "qcow2", &base, "64M"]);
    for offset in ["0", "16M", "32M", "48M"] {
        let write = format!("write -q -P 0x37 {offset} 8M");
        tool("qemu-io", &["-f", "qcow2", "-c", &write, &base]);
    }
    std::fs::set_permissions(&base, std::fs::Permissions::from_mode(0o644)).unwrap();
    let create = ["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &base];
    tool("qemu-img", &[&create[..], &[&root]].concat());
    tool(
        "qemu-io",
        &["-f", "qcow2", "-c", "write -q -P 0x5a 1M 64k", &root],
    );
    [base, root]
}

fn xml(id: Uuid, [base, root]: &[String; 2]) -> String {
    format!(
        r#"<domain type="qemu"><name>pulled</name><uuid>{id}</uuid>
  <metadata><vmlet:vm xmlns:vmlet="https://vmlet.dev/domain/1" container="c"/></metadata>
  <memory unit="MiB">32</memory><vcpu>1</vcpu>
  <os><type arch="x86_64" machine="q35">hvm</type></os>
  <on_poweroff>destroy</on_poweroff><on_crash>destroy</on_crash>
  <devices><emulator>/usr/bin/qemu-system-x86_64</emulator><memballoon model="none"/>
    <disk type="file" device="disk"><driver name="qemu" type="qcow2" discard="unmap"/>
      <source file="{root}"/>
      <backingStore type="file"><format type="qcow2"/>
        <source file="{base}"><seclabel model="dac" relabel="no"/></source><backingStore/>
      </backingStore>
      <target dev="{DISK}" bus="virtio"/></disk>
  </devices>
  <seclabel type="static" model="dac" relabel="yes"><label>+{OWNER}:+{OWNER}</label></seclabel>
</domain>"#
    )
}

fn backing(root: &str) -> Option<String> {
    let info = tool("qemu-img", &["info", "-U", "--output=json", root]);
    let info: Value = serde_json::from_slice(&info).unwrap();
    info["backing-filename"].as_str().map(str::to_owned)
}

fn pattern(root: &str, pattern: &str, place: &str) {
    let read = format!("read -q -P {pattern} {place}");
    tool("qemu-io", &["-r", "-f", "qcow2", "-c", &read, root]);
}

async fn job(hv: &Libvirt, id: Uuid) -> Option<BlockJob> {
    loop {
        match hv.block_job(id, DISK.to_owned()).await {
            Err(error) if error.is_unavailable() => hv.connected().await,
            job => return job.unwrap(),
        }
    }
}

/// Waits until the pull has ended, by its event.
async fn ended(hv: &Libvirt, id: Uuid) {
    let mut events = hv.events();
    let ended = async {
        while job(hv, id).await.is_some() {
            while events.recv().await != Ok(Event::BlockJob(id)) {}
        }
    };
    tokio::time::timeout(TIMEOUT, ended).await.expect("an end");
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_pull_that_was_cancelled_and_outlived_libvirtd_leaves_a_disk_that_stands_alone() {
    let mut libvirtd = Libvirtd::start().unwrap();
    let hv = libvirtd.connect(Settings::default()).await.unwrap();
    let folder = libvirtd.dir().join("disks");
    std::fs::create_dir(&folder).unwrap();
    let disks = disks(&folder);
    let before = std::fs::metadata(&disks[0]).unwrap();
    let id = Uuid::new_v4();
    hv.define(xml(id, &disks)).await.unwrap();
    let off = hv.pull_disk(id, DISK.to_owned(), SLOW).await;
    assert!(matches!(off, Err(Error::Refused { .. })), "{off:?}");
    hv.start(id).await.unwrap();
    hv.abort_block_job(id, DISK.to_owned()).await.unwrap();

    hv.pull_disk(id, DISK.to_owned(), SLOW).await.unwrap();
    hv.pull_disk(id, DISK.to_owned(), SLOW).await.unwrap();
    let seen = job(&hv, id).await.expect("it has begun");
    assert!(seen.is_pull, "{seen:?}");
    hv.abort_block_job(id, DISK.to_owned()).await.unwrap();
    assert_eq!(job(&hv, id).await, None);
    assert_eq!(backing(&disks[1]), Some(disks[0].clone()));

    hv.pull_disk(id, DISK.to_owned(), SLOW).await.unwrap();
    libvirtd.kill();
    libvirtd.launch().unwrap();
    hv.connected().await;
    let found = job(&hv, id).await.expect("QEMU went on");
    assert!(found.is_pull && found.done < found.total, "{found:?}");
    hv.abort_block_job(id, DISK.to_owned()).await.unwrap();

    hv.pull_disk(id, DISK.to_owned(), FAST).await.unwrap();
    ended(&hv, id).await;
    assert_eq!(backing(&disks[1]), None);
    let after = std::fs::metadata(&disks[0]).unwrap();
    assert_eq!(
        (before.uid(), before.gid(), before.mode()),
        (after.uid(), after.gid(), after.mode()),
        "other guests read the base"
    );
    assert_eq!(std::fs::metadata(&disks[1]).unwrap().uid(), OWNER);
    hv.abort_block_job(id, DISK.to_owned()).await.unwrap();
    // The machine ends in the middle of nothing, and the disk has all that it had.
    hv.destroy(id).await.unwrap();
    std::fs::remove_file(&disks[0]).unwrap();
    for (byte, place) in [("0x37", "0 1M"), ("0x5a", "1M 64k"), ("0x37", "48M 8M")] {
        pattern(&disks[1], byte, place);
    }
    pattern(&disks[1], "0", "8M 8M");
}
