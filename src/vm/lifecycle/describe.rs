//! What a container's machine is to libvirt.
//!
//! Invariant: the description follows from the row, its sandbox and [`Parts`] alone; no text of a
//! client is in a path, and the domain's name is made of ids.
//! Failure: none; a text that XML cannot carry is refused where it is written.

use std::path::Path;

use podspec::CpuModel;

use crate::sandbox::Sandbox;
use crate::vm::domain::{self, Console, CpuMode, Disk, DomainSpec, Variable};
use crate::vm::host::accelerator::Accelerator;
use crate::vm::host::cpus;
use crate::vm::model::Container;
use crate::vm::paths::Paths;
use crate::vm::resources::{room, translations};
use crate::vm::settings::Settings;
use crate::vm::shares::{Protocol, Share, socket_name};
use crate::vm::users::Owner;

/// What the row does not say about a machine.
#[derive(Debug)]
pub(in crate::vm) struct Parts<'a> {
    pub(in crate::vm) settings: &'a Settings,
    pub(in crate::vm) paths: &'a Paths,
    pub(in crate::vm) accelerator: Accelerator,
    /// By which `vmwrapper` collects its descriptors.
    pub(in crate::vm) token: String,
    /// The description that goes with the memory which the machine resumes.
    pub(in crate::vm) saved: Option<&'a str>,
    pub(in crate::vm) root: Disk,
    pub(in crate::vm) disks: Vec<Disk>,
    /// User and group of the emulator, if they are not those that libvirt has configured.
    pub(in crate::vm) owner: Option<Owner>,
}

/// The domain of a container.
pub(in crate::vm) fn describe(row: &Container, sandbox: &Sandbox, parts: Parts<'_>) -> DomainSpec {
    let (machine, settings, paths) = (&row.spec.machine, parts.settings, parts.paths);
    let environment = environment(row, &parts);
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
        room: room(row, parts.saved, parts.accelerator),
        cpus: cpus::parse(&row.resources().cpuset_cpus).unwrap_or_default(),
        cpu: match machine.cpu_model {
            CpuModel::Default => CpuMode::Default,
            CpuModel::HostModel => CpuMode::HostModel,
        },
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
fn environment(row: &Container, parts: &Parts<'_>) -> Vec<Variable> {
    let settings = parts.settings;
    let paths = parts.paths;
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let disk_socket = row.has_files().then(|| paths.disk_socket(&row.id));
    let unconfined = Variable::new(domain::LANDLOCK, "off".to_owned());
    [
        Variable::new(domain::EMULATOR, text(&settings.emulator)),
        Variable::new(domain::HANDOFF_SOCKET, text(&settings.handoff_socket)),
        Variable::new(domain::START_TOKEN, parts.token.clone()),
        Variable::new(domain::CONSOLE_SOCKET, text(&paths.console_offer(&row.id))),
    ]
    .into_iter()
    .chain(disk_socket.map(|path| Variable::new(domain::DISK_SOCKET, text(&path))))
    .chain((!settings.landlock).then_some(unconfined))
    .collect()
}

/// Saved memory fits only the devices that it was saved with, and earlier versions had no port for
/// `vmlet-guest`.
fn has_guest_port(row: &Container, saved: Option<&str>) -> bool {
    let wanted = row.spec.machine.guest_agent != podspec::GuestAgent::Off;
    wanted && saved.is_none_or(|xml| xml.contains(guestapi::PORT))
}
