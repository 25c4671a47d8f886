//! A machine from a request to its XML, without a node.
//!
//! Invariant: the row has fixed ids and the paths of a fixed state directory; requests are read and
//! described by the code that serves them.
//! Failure: as for the request.

use std::path::Path;

use podspec::{CpuModel, Defaults, Mib, SandboxId, Vcpus};
use tapmanager::wire::Permit;

use super::domain::{Disk, DiskDevice, DiskFormat, DiskSource, xml};
use super::host::accelerator::{Accelerator, Setting};
use super::lifecycle::describe::{Parts, describe};
use super::lifecycle::{log_path, request};
use super::model::{Container, ContainerConfig, Part, Spec};
use super::{
    Error, Landlock, Owner, Paths, Result, Settings, ShareSettings, UidRange, UnknownImage,
    Unsupported,
};
use crate::sandbox::Sandbox;

const STATE: &str = "/var/lib/vmlet";
const USER: u32 = 1_900_000_007;

fn settings() -> Settings {
    Settings {
        state_dir: STATE.into(),
        accelerator: Setting::Tcg,
        emulator: "/usr/bin/qemu-system-x86_64".into(),
        wrapper: "/usr/libexec/vmlet/vmwrapper".into(),
        guest_agent: "/usr/libexec/vmlet/vmlet-guest".into(),
        firmware: "/usr/share/qemu/firmware".into(),
        landlock: Landlock::On,
        qcow2_file_disks: true,
        handoff_socket: "/run/vmlet/handoff/handoff.sock".into(),
        uid: 107,
        gid: 107,
        uids: UidRange::default(),
        boot_id_file: service::boot_id::KERNEL.into(),
        cgroup_root: "/sys/fs/cgroup".into(),
        installation: "fuzz".to_owned(),
        defaults: Defaults {
            vcpus: Vcpus::ONE,
            memory: Mib::new(64),
            cpu_model: CpuModel::Default,
        },
        unknown_image: UnknownImage::Refuse,
        memory_overhead: 160 << 20,
        unsupported: Unsupported::Warn,
        shares: ShareSettings {
            program: "/usr/libexec/vmlet/vmlet-virtiofsd".into(),
            root: "/".into(),
            user: Owner {
                uid: 65_534,
                gid: 65_534,
            },
        },
    }
}

/// The container that a request makes in a sandbox, and its domain.
pub(crate) fn machine(
    id: podspec::ContainerId,
    sandbox: &Sandbox,
    config: ContainerConfig,
    accelerator: Accelerator,
) -> Result<(Container, String)> {
    let settings = settings();
    let paths = Paths::new(Path::new(STATE));
    let machine = request::machine(sandbox, &config, settings.defaults)?;
    let instance = request::instance(sandbox, &config)?;
    let log_path = log_path(&sandbox.config.log_directory, &config.log_path)
        .unwrap_or_else(|| paths.default_log(&id));
    let spec = Spec {
        config,
        part: Part::Machine,
        machine,
        instance,
        blocks: Vec::new(),
        file_disks: Vec::new(),
        seed: false,
        sysprep: false,
        uefi: false,
        shares: Vec::new(),
        user: Some(USER),
        image_digest: String::new(),
        log_path,
        unsupported: Vec::new(),
    };
    let row = Container::new(id, sandbox.id.clone(), spec);
    let parts = Parts {
        settings: &settings,
        paths: &paths,
        accelerator,
        permit: Permit {
            token: "token".to_owned(),
            socket: None,
        },
        saved: None,
        root: root(&paths, &sandbox.id),
        disks: Vec::new(),
        layers: None,
        disk_bytes: None,
        uefi: None,
        generation: None,
        owner: Some(Owner {
            uid: USER,
            gid: settings.gid,
        }),
    };
    let spec = describe(&row, sandbox, parts);
    let text = xml::to_xml(&spec).map_err(Error::Describe)?;
    Ok((row, text))
}

fn root(paths: &Paths, sandbox: &SandboxId) -> Disk {
    Disk {
        device: DiskDevice::Virtio,
        source: DiskSource::Overlay {
            path: paths.root_disk(sandbox),
            base: Path::new(STATE).join("images/sha256/ab"),
            base_format: DiskFormat::Qcow2,
        },
        format: DiskFormat::Qcow2,
        discard: true,
        read_only: false,
        serial: None,
    }
}
