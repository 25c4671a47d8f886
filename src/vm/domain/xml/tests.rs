//! What the definitions look like.
//!
//! Invariant: no text of a pod breaks out of its place in the XML.
//! Failure: a snapshot that differs is shown as a difference of lines.

use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use podspec::MachineType;
use proptest::prelude::*;
use serde::Deserialize;
use uuid::Uuid;

use super::Error;
use super::to_xml;
use crate::block::Extent;
use crate::vm::domain::{
    Console, CpuMode, Disk, DiskDevice, DiskFormat, DiskSource, DomainSpec, EMULATOR,
    HANDOFF_SOCKET, NO_SHARED_PAGES, Room, START_TOKEN, Share, Spare, Uefi, Variable,
};
use crate::vm::host::accelerator::Accelerator;
use crate::vm::users::Owner;

fn spec() -> DomainSpec {
    DomainSpec {
        vm: None,
        uuid: Uuid::from_u128(0x1111_2222_3333_4444_5555_6666_7777_8888),
        name: "vmlet-web-1".to_owned(),
        container: "c0ffee".to_owned(),
        installation: "installation-1".into(),
        sandbox: "5a4db0".to_owned(),
        pod_name: "web-1".to_owned(),
        pod_namespace: "shop".to_owned(),
        accelerator: Accelerator::Tcg,
        translations_mib: 64,
        machine_type: MachineType::default(),
        uefi: None,
        room: Room {
            vcpus: 2,
            max_vcpus: None,
            memory_mib: 512,
            spare: None,
        },
        cpus: Vec::new(),
        cpu: CpuMode::Default,
        emulator: "/usr/lib/vmlet/vmwrapper".into(),
        environment: vec![
            Variable::new(START_TOKEN, "0123456789abcdef"),
            Variable::new(HANDOFF_SOCKET, "/run/vmlet/handoff.sock"),
            Variable::new(EMULATOR, "/usr/bin/qemu-system-x86_64"),
        ],
        root: Disk {
            device: DiskDevice::Virtio,
            source: DiskSource::Overlay {
                path: "/var/lib/vmlet/pods/5a4db0/root.qcow2".into(),
                base: "/var/lib/vmlet/images/sha256/ab".into(),
                base_format: DiskFormat::Qcow2,
            },
            format: DiskFormat::Qcow2,
            discard: true,
            read_only: false,
            serial: None,
        },
        disks: Vec::new(),
        console: Console {
            socket: "/var/lib/vmlet/console/c0ffee/serial.sock".into(),
            log: "/var/lib/vmlet/console/c0ffee/serial.raw".into(),
        },
        guest_agent: Some("/var/lib/vmlet/console/c/agent".into()),
        guest_socket: Some("/var/lib/vmlet/console/c0ffee/guest".into()),
        shares: Vec::new(),
        system_uuid: None,
        mergeable: false,
        generation: None,
        owner: Some(Owner {
            uid: 1_900_000_007,
            gid: 107,
        }),
    }
}

#[test]
fn an_emulated_guest() {
    insta::assert_snapshot!(to_xml(&spec()).unwrap());
}

#[test]
fn a_kvm_guest_with_more_disks_and_its_own_system_uuid() {
    let disk = |source, format| Disk {
        device: DiskDevice::Virtio,
        source,
        format,
        discard: false,
        read_only: false,
        serial: None,
    };
    let mut spec = DomainSpec {
        accelerator: Accelerator::Kvm,
        translations_mib: 64,
        cpu: CpuMode::HostModel,
        guest_agent: None,
        guest_socket: None,
        system_uuid: Some(Uuid::from_u128(42)),
        machine_type: "pc-q35-7.1".parse().unwrap(),
        ..spec()
    };
    spec.root.source = DiskSource::File("/var/lib/vmlet/pods/5a4db0/root.qcow2".into());
    spec.disks = vec![
        disk(
            DiskSource::Block {
                path: "/dev/mapper/pvc-1".into(),
                part: Some(Extent {
                    offset: 1 << 20,
                    size: 1 << 30,
                }),
            },
            DiskFormat::Raw,
        ),
        Disk {
            read_only: true,
            serial: Some("cidata".to_owned()),
            ..disk(
                DiskSource::File("/var/lib/vmlet/pods/5a4db0/seed.iso".into()),
                DiskFormat::Raw,
            )
        },
    ];
    insta::assert_snapshot!(to_xml(&spec).unwrap());
}

#[test]
fn a_guest_that_boots_by_uefi_has_the_code_of_all_and_a_store_of_its_own() {
    let uefi = Uefi {
        code: "/usr/share/OVMF/OVMF_CODE_4M.fd".into(),
        store: "/var/lib/vmlet/disks/<vm>/uefi.fd".into(),
    };
    let bios = to_xml(&spec()).unwrap();
    let spec = DomainSpec {
        uefi: Some(uefi),
        ..spec()
    };
    let xml = to_xml(&spec).unwrap();
    let new: Vec<_> = xml.lines().filter(|line| !bios.contains(line)).collect();
    let expected = [
        "    <loader readonly=\"yes\" type=\"pflash\">/usr/share/OVMF/OVMF_CODE_4M.fd</loader>",
        "    <nvram>/var/lib/vmlet/disks/&lt;vm&gt;/uefi.fd</nvram>",
    ];
    assert_eq!(new, expected);
    let mut odd = spec;
    let uefi = odd.uefi.as_mut().unwrap();
    uefi.store = std::ffi::OsStr::from_bytes(b"/\xff").into();
    assert!(matches!(to_xml(&odd), Err(Error::Path(_))));
}

#[test]
fn a_guest_sees_its_generation_id() {
    let mut spec = spec();
    assert!(!to_xml(&spec).unwrap().contains("vmgenid"));
    let id = Uuid::from_u128(42);
    spec.generation = Some(id);
    let xml = to_xml(&spec).unwrap();
    let device = format!("<qemu:arg value=\"vmgenid,id=generation,guid={id}\"/>");
    assert!(xml.contains(&device), "{xml}");
}

#[test]
fn pages_of_a_guest_are_merged_with_none_unless_it_returns_from_memory_with_such() {
    let described = |mergeable| {
        to_xml(&DomainSpec {
            mergeable,
            ..spec()
        })
        .unwrap()
    };
    assert!(described(false).contains(NO_SHARED_PAGES));
    assert!(!described(true).contains("memoryBacking"));
}

#[test]
fn the_layers_of_a_disk_are_described_to_the_image() {
    let layered = |base| {
        let mut spec = spec();
        spec.root.source = DiskSource::Layers {
            path: "/d/layers/2.qcow2".into(),
            below: vec!["/d/layers/1.qcow2".into(), "/d/root.qcow2".into()],
            base,
        };
        let xml = to_xml(&spec).unwrap();
        let (_, disk) = xml
            .split_once("<source file=\"/d/layers/2.qcow2\"/>")
            .unwrap();
        let (backing, _) = disk.split_once("<target").unwrap();
        backing.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let layer = |path: &str, next: &str| {
        format!(
            "<backingStore type=\"file\"> <format type=\"qcow2\"/> <source file=\"{path}\"/> {next} </backingStore>"
        )
    };
    let last = "<backingStore/>";
    let whole = layer("/d/layers/1.qcow2", &layer("/d/root.qcow2", last));
    assert_eq!(layered(None), whole);
    let image = "<backingStore type=\"file\"> <format type=\"raw\"/> <source file=\"/i/ab\"> <seclabel \
                 model=\"dac\" relabel=\"no\"/> </source> <backingStore/> </backingStore>";
    let linked = layer("/d/layers/1.qcow2", &layer("/d/root.qcow2", image));
    assert_eq!(layered(Some(("/i/ab".into(), DiskFormat::Raw))), linked);
}

#[test]
fn a_guest_with_shares_has_memory_that_their_processes_reach() {
    let share = |number: u8| Share {
        tag: format!("vmlet-{number}"),
        socket: format!("/var/lib/vmlet/console/c0ffee/vmlet-{number}.fs").into(),
    };
    let shares = vec![share(0), share(1)];
    insta::assert_snapshot!(to_xml(&DomainSpec { shares, ..spec() }).unwrap());
}

#[test]
fn a_cd_rom_is_on_sata_and_nothing_boots_from_it() {
    let disk = Disk {
        device: DiskDevice::CdRom,
        source: DiskSource::File("/var/lib/vmlet/seeds/c0ffee.iso".into()),
        format: DiskFormat::Raw,
        discard: false,
        read_only: true,
        serial: Some("vmlet-seed".to_owned()),
    };
    let disks = vec![disk];
    let xml = to_xml(&DomainSpec { disks, ..spec() }).unwrap();
    let (_, disk) = xml.split_once("device=\"cdrom\"").expect(&xml);
    let (disk, _) = disk.split_once("</disk>").unwrap();
    assert!(
        disk.contains("<target dev=\"sda\" bus=\"sata\"/>"),
        "{disk}"
    );
    assert!(
        disk.contains("<readonly/>") && !disk.contains("<boot"),
        "{disk}"
    );
}

#[test]
fn a_guest_with_room_for_more() {
    let room = Room {
        vcpus: 2,
        max_vcpus: Some(3),
        memory_mib: 512,
        spare: Some(Spare {
            most_mib: 1024,
            requested_mib: 64,
            used_mib: None,
        }),
    };
    insta::assert_snapshot!(to_xml(&DomainSpec { room, ..spec() }).unwrap());
    let of = |room| to_xml(&DomainSpec { room, ..spec() }).unwrap();
    let layout = libvirt::Layout::read(&of(room)).unwrap();
    assert_eq!((layout.vcpus, layout.max_vcpus), (2, Some(3)));
    assert_eq!(
        (layout.base, layout.spare),
        (512 << 20, Some((1 << 30, 64 << 20)))
    );
    // libvirt compares what a resumed guest used.
    let mut resumed = room;
    resumed.spare = room.spare.map(|spare| Spare {
        used_mib: Some(576),
        ..spare
    });
    let resumed = libvirt::Layout::read(&of(resumed)).unwrap();
    assert_eq!((resumed.current, layout.current), (Some(576 << 20), None));
    // Without memory there is no node, without CPUs no list.
    let cpus = of(Room {
        spare: None,
        ..room
    });
    assert!(cpus.contains("<vcpus>") && !cpus.contains("numa"), "{cpus}");
    let memory = of(Room {
        max_vcpus: None,
        ..room
    });
    assert!(
        memory.contains("cpus=\"0-1\"") && !memory.contains("<vcpus>"),
        "{memory}"
    );
}

#[test]
fn what_xml_has_no_character_for_is_refused() {
    let spec = DomainSpec {
        name: "bell\u{7}".to_owned(),
        ..spec()
    };
    assert!(matches!(to_xml(&spec), Err(Error::Character('\u{7}'))));
    use std::os::unix::ffi::OsStringExt;
    let spec = DomainSpec {
        emulator: PathBuf::from(std::ffi::OsString::from_vec(vec![b'/', 0xff])),
        ..self::spec()
    };
    assert!(matches!(to_xml(&spec), Err(Error::Path(_))));
}

#[test]
fn a_token_does_not_appear_in_debug_output() {
    let shown = format!("{:?}", spec());
    assert!(shown.contains(START_TOKEN) && !shown.contains("0123456789abcdef"));
}

/// What a reader finds again.
#[derive(Debug, Deserialize)]
struct Back {
    #[serde(rename = "@type")]
    kind: String,
    name: String,
    title: String,
    metadata: BackMetadata,
    devices: BackDevices,
    #[serde(rename = "commandline")]
    command_line: BackCommandLine,
}

#[derive(Debug, Deserialize)]
struct BackMetadata {
    vm: BackVm,
}

#[derive(Debug, Deserialize)]
struct BackVm {
    #[serde(rename = "@container")]
    container: String,
}

#[derive(Debug, Deserialize)]
struct BackDevices {
    emulator: String,
    serial: BackSerial,
}

#[derive(Debug, Deserialize)]
struct BackSerial {
    log: BackLog,
}

#[derive(Debug, Deserialize)]
struct BackLog {
    #[serde(rename = "@file")]
    file: String,
}

#[derive(Debug, Deserialize)]
struct BackCommandLine {
    env: Vec<BackEnv>,
}

#[derive(Debug, Deserialize)]
struct BackEnv {
    #[serde(rename = "@value")]
    value: String,
}

/// Text made to break XML, and any other text.
fn hostile() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ -~]{0,4}(<|>|&|\"|'|]]>|<!--|&#0;|&lt;|</domain>|\\?>|\r|\n|\t| ){1,6}[ -~]{0,4}",
        any::<String>(),
    ]
}

proptest! {
    #[test]
    fn hostile_text_stays_in_its_place_or_is_refused(evil in hostile()) {
        let spec = DomainSpec {
            name: evil.clone(),
            container: evil.clone(),
            pod_name: evil.clone(),
            pod_namespace: String::new(),
            emulator: evil.clone().into(),
            environment: vec![Variable::new("A", evil.clone())],
            console: Console { socket: "/s".into(), log: evil.clone().into() },
            ..spec()
        };
        let Ok(xml) = to_xml(&spec) else {
            prop_assert!(evil.chars().any(|c| !super::is_xml(c)));
            return Ok(());
        };
        let back: Back = quick_xml::de::from_str(&xml).map_err(|e| TestCaseError::fail(format!("{e}: {xml}")))?;
        prop_assert_eq!(&back.kind, "qemu");
        prop_assert_eq!(&back.metadata.vm.container, &evil);
        prop_assert_eq!(&back.devices.serial.log.file, &evil);
        prop_assert_eq!(&back.command_line.env[0].value, &evil);
        // Readers trim the white space around an element's text.
        prop_assert_eq!(back.name.trim(), evil.trim());
        prop_assert_eq!(back.devices.emulator.trim(), evil.trim());
        prop_assert!(!back.title.contains(['\n', '\r']));
    }
}
