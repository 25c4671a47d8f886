//! A real QEMU is switched to another file of its first disk.
//!
//! Invariant: the guest sits in the firmware; what the emulator says of its disk is compared with the file that
//! it was switched to, also when libvirt describes the domain as it was before.
//! Failure: the test names the file.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use libvirt::harness::Libvirtd;
use libvirt::{Error, Hypervisor, Libvirt, Settings};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use uuid::Uuid;

/// A user of QEMU that nothing else has.
const OWNER: u32 = 4_000_124;

pub(super) fn create(file: &Path, below: Option<&Path>) {
    let mut create = Command::new("qemu-img");
    create.args(["create", "-q", "-u", "-f", "qcow2"]);
    if let Some(below) = below {
        create.args(["-F", "qcow2", "-b"]).arg(below);
    }
    let done = create.arg(file).arg("8M").output().unwrap();
    let words = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{}: {words}", file.display());
}

/// What the first disk is based on, the next file first.
fn backing(below: &[PathBuf]) -> String {
    let Some((file, below)) = below.split_first() else {
        return "<backingStore/>".to_owned();
    };
    format!(
        r#"<backingStore type="file"><format type="qcow2"/>
        <source file="{}"><seclabel model="dac" relabel="no"/></source>{}</backingStore>"#,
        file.display(),
        backing(below)
    )
}

pub(super) fn xml(id: Uuid, folder: &Path, below: &[PathBuf]) -> String {
    let file = |name: &str| folder.join(name).display().to_string();
    let root = file("root.qcow2");
    let second = file("second.qcow2");
    let drive = file("drive.iso");
    let backing = backing(below);
    format!(
        r#"<domain type="qemu"><name>switched</name><uuid>{id}</uuid>
  <metadata><vmlet:vm xmlns:vmlet="https://vmlet.dev/domain/1" container="c"/></metadata>
  <memory unit="MiB">32</memory><vcpu>1</vcpu>
  <os><type arch="x86_64" machine="q35">hvm</type></os>
  <on_poweroff>destroy</on_poweroff><on_crash>destroy</on_crash>
  <devices><emulator>/usr/bin/qemu-system-x86_64</emulator><memballoon model="none"/>
    <disk type="file" device="disk"><driver name="qemu" type="qcow2" discard="unmap"/>
      <source file="{root}"/>
      {backing}
      <target dev="vda" bus="virtio"/></disk>
    <disk type="file" device="disk"><driver name="qemu" type="qcow2"/>
      <source file="{second}"/><backingStore/><target dev="vdb" bus="virtio"/></disk>
    <disk type="file" device="cdrom"><driver name="qemu" type="raw"/>
      <source file="{drive}"/><target dev="sda" bus="sata"/><readonly/></disk>
  </devices>
  <seclabel type="static" model="dac" relabel="yes"><label>+{OWNER}:+{OWNER}</label></seclabel>
</domain>"#
    )
}

pub(super) async fn root(hv: &Libvirt, id: Uuid) -> Option<PathBuf> {
    loop {
        match hv.root_file(id).await {
            Err(error) if error.is_unavailable() => hv.connected().await,
            file => return file.unwrap(),
        }
    }
}

pub(super) fn allow(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A directory with all disks of the domain but the first one.
pub(super) fn disks(libvirtd: &Libvirtd) -> PathBuf {
    let folder = libvirtd.dir().join("disks");
    std::fs::create_dir(&folder).unwrap();
    allow(&folder, 0o755);
    create(&folder.join("second.qcow2"), None);
    std::fs::write(folder.join("drive.iso"), vec![0; 1 << 20]).unwrap();
    folder
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_running_machine_writes_to_another_file_and_an_error_changes_nothing() {
    let mut libvirtd = Libvirtd::start().unwrap();
    let hv = libvirtd.connect(Settings::default()).await.unwrap();
    let folder = disks(&libvirtd);
    let file = |name: &str| folder.join(name);
    let base = file("base.qcow2");
    create(&base, None);
    allow(&base, 0o644);
    create(&file("root.qcow2"), Some(&base));
    let id = Uuid::new_v4();
    assert_eq!(root(&hv, id).await, None, "there is no domain");
    hv.define(xml(id, &folder, &[base])).await.unwrap();
    assert_eq!(root(&hv, id).await, None, "there is no emulator");
    let off = hv.switch_root(id, file("layer.qcow2")).await;
    assert!(matches!(off, Err(Error::Refused { .. })), "{off:?}");
    hv.start(id).await.unwrap();
    assert_eq!(root(&hv, id).await, Some(file("root.qcow2")));

    let absent = hv.switch_root(id, file("layer.qcow2")).await;
    assert!(matches!(absent, Err(Error::Refused { .. })), "{absent:?}");
    assert_eq!(root(&hv, id).await, Some(file("root.qcow2")));
    create(&file("layer.qcow2"), Some(&file("root.qcow2")));
    let status = libvirtd.dir().join("run/libvirt/qemu/switched.xml");
    let before = std::fs::read(&status).unwrap();
    hv.switch_root(id, file("layer.qcow2")).await.unwrap();
    assert_eq!(root(&hv, id).await, Some(file("layer.qcow2")));
    let owner = std::fs::metadata(file("layer.qcow2")).unwrap().uid();
    assert_eq!(owner, OWNER);
    libvirtd.kill();
    libvirtd.launch().unwrap();
    hv.connected().await;
    assert_eq!(root(&hv, id).await, Some(file("layer.qcow2")));

    // libvirtd was killed before it wrote that down.
    libvirtd.kill();
    std::fs::write(&status, before).unwrap();
    libvirtd.launch().unwrap();
    hv.connected().await;
    assert_eq!(root(&hv, id).await, Some(file("layer.qcow2")));
    hv.destroy(id).await.unwrap();
    assert_eq!(root(&hv, id).await, None);
    hv.undefine(id).await.unwrap();
}

/// A client that has requested a switch, and can be killed.
fn requesting_switch(libvirtd: &Libvirtd, file: &Path) -> Child {
    let disk = |name: &str, rest: &str| format!(r#"<disk name="{name}" snapshot={rest}/disk>"#);
    let source = format!(
        r#""external" type="file"><driver type="qcow2"/><source file="{}"/><"#,
        file.display()
    );
    let none = r#""no"><"#;
    let disks = disk("vda", &source) + &disk("vdb", none) + &disk("sda", none);
    let xml = libvirtd.dir().join("switch.xml");
    let text = format!("<domainsnapshot><disks>{disks}</disks></domainsnapshot>");
    std::fs::write(&xml, text).unwrap();
    let mut client = Command::new("virsh");
    client.args(["-q", "-c", &libvirtd.uri(), "snapshot-create", "switched"]);
    client.arg(&xml).args([
        "--disk-only",
        "--atomic",
        "--reuse-external",
        "--no-metadata",
    ]);
    let quiet = client.stdout(Stdio::null()).stderr(Stdio::null());
    quiet.spawn().unwrap()
}

/// Waits until libvirtd works on the switch: it writes that down first.
pub(super) async fn begun(status: &Path) {
    let end = Instant::now() + Duration::from_secs(60);
    let begins = |text: String| text.contains("async='snapshot'");
    while !std::fs::read_to_string(status).is_ok_and(begins) {
        assert!(Instant::now() < end, "no switch begins");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The emulator stalls, the client of a switch that libvirtd has accepted is killed, and another one looks.
#[tokio::test]
#[ignore = "needs root"]
async fn a_file_that_has_lost_its_name_is_opened_by_no_switch_that_is_in_progress() {
    let libvirtd = Libvirtd::start().unwrap();
    let hv = libvirtd.connect(Settings::default()).await.unwrap();
    let folder = disks(&libvirtd);
    let file = |name: &str| folder.join(name);
    create(&file("root.qcow2"), None);
    let id = Uuid::new_v4();
    hv.define(xml(id, &folder, &[])).await.unwrap();
    hv.start(id).await.unwrap();
    assert_eq!(root(&hv, id).await, Some(file("root.qcow2")));
    let status = libvirtd.dir().join("run/libvirt/qemu/switched.xml");
    let emulator = Pid::from_raw(libvirtd.emulators()[0]);
    for (layer, is_renamed) in [("one.qcow2", true), ("two.qcow2", false)] {
        create(&file(layer), Some(&file("root.qcow2")));
        kill(emulator, Signal::SIGSTOP).unwrap();
        let mut client = requesting_switch(&libvirtd, &file(layer));
        begun(&status).await;
        client.kill().unwrap();
        client.wait().unwrap();
        let doubt = file(layer).with_extension("doubt");
        if is_renamed {
            std::fs::rename(file(layer), &doubt).unwrap();
        }
        let next = libvirtd.connect(Settings::default()).await.unwrap();
        let look = tokio::spawn(async move { root(&next, id).await });
        tokio::task::yield_now().await;
        kill(emulator, Signal::SIGCONT).unwrap();
        let expected = if is_renamed { "root.qcow2" } else { layer };
        assert_eq!(look.await.unwrap(), Some(file(expected)));
        // What begins only now does not find the file either.
        if is_renamed {
            let late = hv.switch_root(id, file(layer)).await;
            assert!(matches!(late, Err(Error::Refused { .. })), "{late:?}");
            assert_eq!(root(&hv, id).await, Some(file("root.qcow2")));
        }
    }
    // The emulator names a file as it was when it opened it.
    let renamed = file("two.doubt");
    std::fs::rename(file("two.qcow2"), renamed).unwrap();
    assert_eq!(root(&hv, id).await, Some(file("two.qcow2")));
    hv.destroy(id).await.unwrap();
    hv.undefine(id).await.unwrap();
}

/// A merge leaves another name in the header of the layer above: the emulator then has names for all files above
/// it that contain those of all that is below, and cuts them off.
#[tokio::test]
#[ignore = "needs root"]
async fn the_file_of_a_long_chain_is_named_in_full() {
    let libvirtd = Libvirtd::start().unwrap();
    let hv = libvirtd.connect(Settings::default()).await.unwrap();
    let folder = disks(&libvirtd);
    let file = |name: &str| folder.join(name);
    let long = "x".repeat(80);
    let chain: Vec<_> = (0..30)
        .map(|n| file(&format!("{n}-{long}.qcow2")))
        .collect();
    let merged = file("merged.qcow2");
    let mut below = None;
    for layer in &chain {
        create(layer, below);
        allow(layer, 0o644);
        let named = below.map_or(&merged, |_| layer);
        below = Some(named.as_path());
    }
    create(&file("root.qcow2"), below);
    let id = Uuid::new_v4();
    let below: Vec<_> = chain.into_iter().rev().collect();
    hv.define(xml(id, &folder, &below)).await.unwrap();
    hv.start(id).await.unwrap();
    assert_eq!(root(&hv, id).await, Some(file("root.qcow2")));
    create(&file("layer.qcow2"), Some(&file("root.qcow2")));
    hv.switch_root(id, file("layer.qcow2")).await.unwrap();
    assert_eq!(root(&hv, id).await, Some(file("layer.qcow2")));
    hv.destroy(id).await.unwrap();
    hv.undefine(id).await.unwrap();
}
