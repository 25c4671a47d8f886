//! Our domain definitions before the real libvirt and the real QEMU.
//!
//! Invariant: libvirtd is the test's own; the guest is a boot sector that writes one letter per
//! timer tick.
//! Failure: a definition that libvirt refuses, rewrites or runs otherwise than meant.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests"
)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use daemon::vm::Owner;
use daemon::vm::accelerator::Accelerator;
use daemon::vm::domain::{
    Console, CpuMode, Disk, DiskDevice, DiskFormat, DiskSource, DomainSpec, EMULATOR, Room,
    START_TOKEN, Share, Spare, Variable,
};
use libvirt::harness::Libvirtd;
use libvirt::{Hypervisor, Layout, Settings, State};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use uuid::Uuid;

/// `sti; 1: hlt; mov dx,0x3f8; mov al,'V'; out dx,al; jmp 1b`
const WRITER: [u8; 10] = [0xfb, 0xf4, 0xba, 0xf8, 0x03, 0xb0, b'V', 0xee, 0xeb, 0xf7];
const SYSTEM_UUID: Uuid = Uuid::from_u128(0xabcd);
/// A user that no account has.
const OWNER: Owner = Owner {
    uid: 1_900_000_007,
    gid: 0,
};

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A spec whose disks exist below `dir`, which the emulator's user can reach.
fn spec(dir: &Path) -> DomainSpec {
    let mut sector = WRITER.to_vec();
    sector.resize(510, 0);
    sector.extend([0x55, 0xaa]);
    // The firmware does not boot from a disk of a single sector.
    sector.resize(1 << 20, 0);
    let base = dir.join("base.raw");
    let overlay = dir.join("root & <disk>'s.qcow2");
    fs::write(&base, sector).unwrap();
    let options = [
        "create",
        "-q",
        "-f",
        "qcow2",
        "-F",
        "raw",
        "-b",
        path(&base),
        path(&overlay),
    ];
    run("qemu-img", &options);
    let seed = dir.join("seed.raw");
    fs::write(&seed, [0; 4096]).unwrap();
    let answers = dir.join("answers.iso");
    fs::write(&answers, [0; 4096]).unwrap();
    let consoles = dir.join("console");
    fs::create_dir(&consoles).unwrap();
    fs::set_permissions(&consoles, fs::Permissions::from_mode(0o777)).unwrap();
    DomainSpec {
        vm: None,
        uuid: Uuid::new_v4(),
        mergeable: false,
        generation: Some(Uuid::new_v4()),
        name: "vmlet-xml-test".to_owned(),
        container: "c0ffee".to_owned(),
        installation: "i".to_owned(),
        machine_type: podspec::MachineType::default(),
        uefi: None,
        sandbox: "5a4db0".to_owned(),
        pod_name: "web <1>".to_owned(),
        pod_namespace: "shop".to_owned(),
        accelerator: Accelerator::Tcg,
        translations_mib: 64,
        room: Room {
            vcpus: 2,
            max_vcpus: Some(4),
            memory_mib: 64,
            spare: Some(Spare {
                most_mib: 128,
                requested_mib: 32,
                used_mib: None,
            }),
        },
        cpus: Vec::new(),
        cpu: CpuMode::HostModel,
        emulator: "/usr/bin/qemu-system-x86_64".into(),
        environment: vec![
            Variable::new(START_TOKEN, "tok<en>\"&'"),
            Variable::new(EMULATOR, "/usr/bin/qemu-system-x86_64"),
        ],
        root: Disk {
            device: DiskDevice::Virtio,
            source: DiskSource::Overlay {
                path: overlay,
                base,
                base_format: DiskFormat::Raw,
            },
            format: DiskFormat::Qcow2,
            discard: true,
            read_only: false,
            serial: None,
        },
        disks: vec![
            Disk {
                device: DiskDevice::Virtio,
                source: DiskSource::File(seed),
                format: DiskFormat::Raw,
                discard: false,
                read_only: true,
                serial: Some("cidata".to_owned()),
            },
            Disk {
                device: DiskDevice::CdRom,
                source: DiskSource::File(answers),
                format: DiskFormat::Raw,
                discard: false,
                read_only: true,
                serial: Some("vmlet-seed".to_owned()),
            },
        ],
        console: Console {
            socket: consoles.join("serial.sock"),
            log: consoles.join("serial.raw"),
        },
        guest_agent: Some(consoles.join("agent")),
        guest_socket: Some(consoles.join("guest")),
        shares: vec![Share {
            tag: "vmlet-0".to_owned(),
            socket: consoles.join("vmlet-0.fs"),
        }],
        system_uuid: Some(SYSTEM_UUID),
        owner: Some(OWNER),
    }
}

/// Slots on the root bus that libvirt has given away.
fn slots_on_root_bus(xml: &str) -> Vec<u8> {
    let address = "type='pci' domain='0x0000' bus='0x00' slot='0x";
    xml.split(address)
        .skip(1)
        .map(|rest| u8::from_str_radix(&rest[..2], 16).unwrap())
        .collect()
}

#[tokio::test]
#[ignore = "needs root"]
async fn libvirt_takes_the_definition_as_it_is_meant() {
    let mut libvirtd = Libvirtd::start().unwrap();
    let hv = libvirtd.connect(Settings::default()).await.unwrap();
    let mut spec = spec(libvirtd.dir());
    let file = libvirtd.dir().join("domain.xml");
    fs::write(&file, daemon::vm::xml::to_xml(&spec).unwrap()).unwrap();
    let uri = libvirtd.uri();
    let virsh = |args: &[&str]| run("virsh", &[&["-c", &uri], args].concat());
    virsh(&["define", "--validate", path(&file)]);
    let id = spec.uuid.to_string();
    let kept = virsh(&["dumpxml", "--inactive", &id]);
    for part in [
        "<title>shop/web &lt;1&gt;</title>",
        "container=\"c0ffee\" sandbox=\"5a4db0\"",
        "<cpu mode='maximum'",
        "<timer name='rtc' tickpolicy='catchup'/>",
        "<suspend-to-mem enabled='no'/>",
        "type='qcow2' discard='unmap'",
        "root &amp; &lt;disk&gt;&apos;s.qcow2",
        "<seclabel model='dac' relabel='no'/>",
        "<serial>cidata</serial>",
        "<target dev='sda' bus='sata'/>",
        "<boot order='1'/>",
        "<readonly/>",
        "<controller type='usb' index='0' model='none'/>",
        "serial.raw' append='on'/>",
        "name='org.qemu.guest_agent.0'",
        "name='dev.vmlet.guest.0'",
        "<backend model='random'>/dev/urandom</backend>",
        "freePageReporting='on'",
        "<stats period='10'/>",
        "<access mode='shared'/>",
        "<nosharepages/>",
        "<driver type='virtiofs' queue='1024'/>",
        "<target dir='vmlet-0'/>",
        "<vcpu placement='static' current='2'>4</vcpu>",
        "<vcpu id='1' enabled='yes' hotpluggable='yes' order='2'/>",
        "<cell id='0' cpus='0-3' memory='65536' unit='KiB'/>",
        "<memory model='virtio-mem'>",
        "<requested unit='KiB'>32768</requested>",
        "value='tok&lt;en&gt;&quot;&amp;&apos;'",
    ] {
        assert!(kept.contains(part), "{part} is not in {kept}");
    }
    assert!(
        !kept.contains("<interface") && !kept.contains("<graphics") && !kept.contains("<video")
    );
    let slots = slots_on_root_bus(&kept);
    assert!(!slots.is_empty());
    assert!(
        slots.iter().all(|slot| !(0x10..=0x17).contains(slot)),
        "{slots:x?}"
    );
    assert_eq!(hv.list().await.unwrap()[0].container, "c0ffee");

    // No process serves the share here.
    spec.shares.clear();
    fs::write(&file, daemon::vm::xml::to_xml(&spec).unwrap()).unwrap();
    virsh(&["define", "--validate", path(&file)]);
    hv.start(spec.uuid).await.unwrap();
    let mut console = UnixStream::connect(&spec.console.socket).await.unwrap();
    // QEMU logs a letter after it has sent it, and before it sends the next one.
    for _ in 0..2 {
        let letter = tokio::time::timeout(Duration::from_secs(60), console.read_u8());
        assert_eq!(letter.await.expect("a letter in time").unwrap(), b'V');
    }
    assert!(fs::read(&spec.console.log).unwrap().contains(&b'V'));
    let size = hv.size(spec.uuid).await.unwrap();
    assert_eq!((size.vcpus, size.base), (2, 64 << 20));
    hv.set_vcpus(spec.uuid, 3).await.unwrap();
    hv.set_memory(spec.uuid, 64 << 20).await.unwrap();
    let size = hv.size(spec.uuid).await.unwrap();
    let spare = size.spare.unwrap();
    assert_eq!(
        (size.vcpus, spare.requested, spare.most),
        (3, 64 << 20, 128 << 20)
    );
    let saved = Layout::read(&virsh(&["dumpxml", &id])).unwrap();
    assert_eq!((saved.vcpus, saved.max_vcpus), (3, Some(4)));
    assert_eq!(saved.spare, Some((128 << 20, 64 << 20)));
    let DiskSource::Overlay { path, base, .. } = &spec.root.source else {
        panic!("the root is an overlay")
    };
    assert_eq!(
        fs::metadata(base).unwrap().uid(),
        0,
        "the base keeps its owner"
    );
    assert_eq!(
        fs::metadata(path).unwrap().uid(),
        OWNER.uid,
        "the machine's user writes the overlay"
    );
    let monitor = virsh(&["qemu-monitor-command", "--hmp", &id, "info uuid"]);
    assert!(monitor.contains(&SYSTEM_UUID.to_string()), "{monitor}");
    let monitor = virsh(&[
        "qemu-monitor-command",
        "--hmp",
        &id,
        "info vm-generation-id",
    ]);
    let generation = spec.generation.unwrap().to_string();
    assert!(monitor.contains(&generation), "{monitor}");
    let monitor = virsh(&["qemu-monitor-command", "--hmp", &id, "info memdev"]);
    let mut merges = monitor.lines().filter(|line| line.contains("merge:"));
    assert!(monitor.contains("merge:"), "{monitor}");
    assert!(merges.all(|line| line.ends_with("false")), "{monitor}");

    libvirtd.kill();
    libvirtd.launch().unwrap();
    let hv = libvirtd.connect(Settings::default()).await.unwrap();
    assert_eq!(hv.state(spec.uuid).await.unwrap(), Some(State::Active));
    hv.destroy(spec.uuid).await.unwrap();
    hv.undefine(spec.uuid).await.unwrap();
}
