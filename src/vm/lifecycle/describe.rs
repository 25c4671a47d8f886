//! What a container's machine is to libvirt.
//!
//! Invariant: the description follows from the row, its sandbox and [`Parts`] alone; no text of a
//! client is in a path, and the domain's name is made of ids.
//! Failure: none; a text that XML cannot carry is refused where it is written.

use std::path::{Path, PathBuf};

use podspec::CpuModel;
use tapmanager::wire::{Permit, start_socket};
use uuid::Uuid;

use crate::sandbox::Sandbox;
use crate::vm::domain::{self, Console, CpuMode, Disk, DomainSpec, Room, Variable};
use crate::vm::host::accelerator::Accelerator;
use crate::vm::host::cpus;
use crate::vm::model::Container;
use crate::vm::paths::Paths;
use crate::vm::resources::{file_size, room, translations};
use crate::vm::settings::{Landlock, Settings};
use crate::vm::shares::{Protocol, Share, socket_name};
use crate::vm::users::Owner;

/// What the row does not say about a machine.
#[derive(Debug)]
pub(in crate::vm) struct Parts<'a> {
    pub(in crate::vm) settings: &'a Settings,
    pub(in crate::vm) paths: &'a Paths,
    pub(in crate::vm) accelerator: Accelerator,
    /// By which `vmwrapper` collects its descriptors.
    pub(in crate::vm) permit: Permit,
    /// The description that goes with the memory which the machine resumes.
    pub(in crate::vm) saved: Option<&'a str>,
    pub(in crate::vm) root: Disk,
    pub(in crate::vm) disks: Vec<Disk>,
    /// The directory of the layers of the root disk.
    pub(in crate::vm) layers: Option<PathBuf>,
    /// The size of its largest disk in a file, if it is known and QEMU has no files of volumes.
    pub(in crate::vm) disk_bytes: Option<u64>,
    /// The firmware, if the guest boots by UEFI.
    pub(in crate::vm) uefi: Option<domain::Uefi>,
    /// The VM generation ID, if the guest sees one.
    pub(in crate::vm) generation: Option<Uuid>,
    /// User and group of the emulator, if they are not those that libvirt has configured.
    pub(in crate::vm) owner: Option<Owner>,
}

/// The domain of a container.
pub(in crate::vm) fn describe(row: &Container, sandbox: &Sandbox, parts: Parts<'_>) -> DomainSpec {
    let machine = &row.spec.machine;
    let settings = parts.settings;
    let paths = parts.paths;
    let room = room(row, parts.saved, parts.accelerator);
    let environment = environment(row, &parts, &room);
    DomainSpec {
        uuid: row.domain(),
        name: match row.vm() {
            // Saved memory goes back only into a domain of the same name.
            Some(vm) => format!("vmlet-{vm}"),
            None => format!("vmlet-{}", &row.id.as_str()[..20]),
        },
        vm: row.vm(),
        container: row.id.to_string(),
        sandbox: sandbox.id.to_string(),
        installation: settings.installation.clone(),
        pod_name: sandbox.config.metadata.name.clone(),
        pod_namespace: sandbox.config.metadata.namespace.clone(),
        accelerator: parts.accelerator,
        translations_mib: translations(row, &sandbox.config, settings.memory_overhead),
        machine_type: machine.machine_type.clone(),
        uefi: parts.uefi,
        room,
        cpus: cpus::parse(&row.resources().cpuset_cpus).unwrap_or_default(),
        cpu: cpu(machine.cpu_model, parts.saved),
        emulator: settings.wrapper.clone(),
        environment,
        root: parts.root,
        disks: parts.disks,
        console: Console {
            socket: paths.console_socket(&row.id),
            log: paths.console_file(&row.id),
        },
        guest_agent: Some(paths.agent_socket(&row.id)),
        guest_socket: has_guest_port(row, parts.saved).then(|| paths.guest_socket(&row.id)),
        shares: shares(row, paths),
        system_uuid: machine.system_uuid,
        mergeable: is_mergeable(parts.saved),
        generation: parts.generation,
        owner: parts.owner,
    }
}

fn shares(row: &Container, paths: &Paths) -> Vec<domain::Share> {
    let sockets = paths.sockets(&row.id);
    let share = |share: &Share| domain::Share {
        tag: share.tag.clone(),
        socket: sockets.join(socket_name(share)),
    };
    row.spec.shares_by(Protocol::Virtiofs).map(share).collect()
}

/// What `vmwrapper` needs to know, and QEMU does not see.
fn environment(row: &Container, parts: &Parts<'_>, room: &Room) -> Vec<Variable> {
    let settings = parts.settings;
    let paths = parts.paths;
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let handoff = match &parts.permit.socket {
        Some(name) => start_socket(&settings.handoff_socket, name),
        // An earlier tapmanager has one socket for all starts.
        None => settings.handoff_socket.clone(),
    };
    let disk_socket = row.has_files().then(|| paths.disk_socket(&row.id));
    let landlock = match settings.landlock {
        Landlock::On => None,
        Landlock::Off => Some("off"),
        Landlock::Required => Some("require"),
    };
    [
        Variable::new(domain::EMULATOR, text(&settings.emulator)),
        Variable::new(domain::HANDOFF_SOCKET, text(&handoff)),
        Variable::new(domain::START_TOKEN, parts.permit.token.clone()),
        Variable::new(domain::CONSOLE_SOCKET, text(&paths.console_offer(&row.id))),
    ]
    .into_iter()
    .chain(disk_socket.map(|path| Variable::new(domain::DISK_SOCKET, text(&path))))
    .chain(
        parts
            .layers
            .iter()
            .map(|path| Variable::new(domain::LAYERS, text(path))),
    )
    .chain(
        file_size(parts.disk_bytes, room)
            .map(|bytes| Variable::new(domain::FILE_SIZE, bytes.to_string())),
    )
    .chain(landlock.map(|word| Variable::new(domain::LANDLOCK, word.to_owned())))
    .collect()
}

/// Saved memory fits only the accelerator that it was saved with, and the one of the node may be another by
/// now.
pub(super) fn fitting_accelerator(chosen: Accelerator, saved: Option<&str>) -> Accelerator {
    match saved.and_then(libvirt::is_emulated) {
        Some(true) => Accelerator::Tcg,
        Some(false) => Accelerator::Kvm,
        None => chosen,
    }
}

/// Saved memory fits only the CPU that it was saved with, and the default of the node may be another
/// by now. libvirt describes the model of the node in full there.
fn cpu(model: CpuModel, saved: Option<&str>) -> CpuMode {
    let had = |mode: &str| saved.is_some_and(|xml| xml.contains(&format!("<cpu mode='{mode}'")));
    if had("host-passthrough") {
        return CpuMode::Default;
    }
    if had("custom") {
        return CpuMode::HostModel;
    }
    match model {
        CpuModel::Default => CpuMode::Default,
        CpuModel::HostModel => CpuMode::HostModel,
    }
}

/// Saved memory fits only the devices that it was saved with, and earlier versions had no port for
/// `vmlet-guest`.
fn has_guest_port(row: &Container, saved: Option<&str>) -> bool {
    let wanted = row.spec.machine.guest_agent != podspec::GuestAgent::Off;
    wanted && saved.is_none_or(|xml| xml.contains(guestapi::PORT))
}

/// Memory returns as it was saved, and earlier versions let the kernel merge its pages.
fn is_mergeable(saved: Option<&str>) -> bool {
    saved.is_some_and(|xml| !xml.contains(domain::NO_SHARED_PAGES))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::new(Accelerator::Tcg, None, Accelerator::Tcg)]
    #[case::same(
        Accelerator::Kvm,
        Some("<domain type='kvm' id='1'/>"),
        Accelerator::Kvm
    )]
    #[case::was_kvm(Accelerator::Tcg, Some("<domain type='kvm'/>"), Accelerator::Kvm)]
    #[case::was_emulated(
        Accelerator::Kvm,
        Some("<domain type='qemu'><os/></domain>"),
        Accelerator::Tcg
    )]
    #[case::not_described(Accelerator::Tcg, Some("<domain/>"), Accelerator::Tcg)]
    fn a_guest_continues_with_the_accelerator_that_it_was_saved_with(
        #[case] chosen: Accelerator,
        #[case] saved: Option<&str>,
        #[case] expected: Accelerator,
    ) {
        assert_eq!(fitting_accelerator(chosen, saved), expected);
    }

    #[rstest]
    #[case::new(CpuModel::Default, None, CpuMode::Default)]
    #[case::new_model(CpuModel::HostModel, None, CpuMode::HostModel)]
    #[case::same(
        CpuModel::HostModel,
        Some("<cpu mode='custom' match='exact'>"),
        CpuMode::HostModel
    )]
    #[case::default_is_another(
        CpuModel::Default,
        Some("<cpu mode='custom' match='exact'>"),
        CpuMode::HostModel
    )]
    #[case::default_was_another(
        CpuModel::HostModel,
        Some("<cpu mode='host-passthrough' check='none'/>"),
        CpuMode::Default
    )]
    #[case::not_described(CpuModel::HostModel, Some("<domain/>"), CpuMode::HostModel)]
    fn a_guest_continues_with_the_cpu_that_it_was_saved_with(
        #[case] model: CpuModel,
        #[case] saved: Option<&str>,
        #[case] expected: CpuMode,
    ) {
        assert_eq!(cpu(model, saved), expected);
    }

    #[test]
    fn only_a_guest_that_was_saved_with_mergeable_pages_has_them() {
        assert!(!is_mergeable(None));
        let saved = "<memoryBacking>\n <nosharepages/>\n</memoryBacking>";
        assert!(!is_mergeable(Some(saved)));
        assert!(is_mergeable(Some("<domain/>")));
    }
}
