//! The paths of the files of machines.
//!
//! Invariant: names are made of ids only, never of anything a client chose; directories on the way
//! to a disk or a socket can be traversed, not listed, by QEMU's user.
//! Failure: none here.

use std::path::{Path, PathBuf};

use podspec::{ContainerId, Id, SandboxId};

/// Digits of an id in file names: unique in practice, and short enough for a socket's path.
const DIGITS: usize = 20;

/// The state directory and what is below it.
#[derive(Debug, Clone)]
pub struct Paths {
    state: PathBuf,
}

impl Paths {
    /// Below this state directory.
    pub fn new(state: &Path) -> Self {
        Self {
            state: state.to_owned(),
        }
    }

    /// Directory of all sandboxes' disks.
    pub fn pods(&self) -> PathBuf {
        self.state.join("pods")
    }

    /// Directory of one sandbox's disks.
    pub fn pod(&self, id: &SandboxId) -> PathBuf {
        self.pods().join(cut(id))
    }

    /// The root disk of a sandbox.
    pub fn root_disk(&self, id: &SandboxId) -> PathBuf {
        self.pod(id).join("root.qcow2")
    }

    /// The variable store of UEFI of a sandbox's machine whose disk is no virtual machine's.
    pub fn variable_store(&self, id: &SandboxId) -> PathBuf {
        self.pod(id).join(crate::disk::STORE)
    }

    /// Directory of all consoles.
    pub fn consoles(&self) -> PathBuf {
        self.state.join("console")
    }

    /// The file that QEMU appends the serial port to.
    pub fn console_file(&self, id: &ContainerId) -> PathBuf {
        self.consoles().join(format!("{}.raw", cut(id)))
    }

    /// The directory that belongs to QEMU's user, for sockets.
    pub fn sockets(&self, id: &ContainerId) -> PathBuf {
        self.consoles().join(cut(id))
    }

    /// The socket at which an emulator collects the files of its console.
    pub fn console_offer(&self, id: &ContainerId) -> PathBuf {
        self.sockets(id).join("console")
    }

    /// The socket that leads to the serial port, where libvirt has it.
    pub fn console_socket(&self, id: &ContainerId) -> PathBuf {
        self.sockets(id).join("serial")
    }

    /// The socket that leads to the QEMU guest agent. libvirt's own place for it can be entered by
    /// the group that all machines share.
    pub fn agent_socket(&self, id: &ContainerId) -> PathBuf {
        self.sockets(id).join("agent")
    }

    /// The socket that leads to `vmlet-guest`.
    pub fn guest_socket(&self, id: &ContainerId) -> PathBuf {
        self.sockets(id).join("guest")
    }

    /// The socket at which `vmwrapper` collects the disks that are files of volumes, and directories.
    pub fn disk_socket(&self, id: &ContainerId) -> PathBuf {
        self.sockets(id).join("disks")
    }

    /// The file that libvirt names in the place of such a disk.
    pub fn disk_stand_in(&self, id: &ContainerId, index: usize) -> PathBuf {
        self.sockets(id).join(format!("disk-{index}"))
    }

    /// The log of a container whose client named none.
    pub fn default_log(&self, id: &ContainerId) -> PathBuf {
        self.consoles().join(format!("{}.log", cut(id)))
    }

    /// Directory of what is known of processes.
    pub fn processes(&self) -> PathBuf {
        self.state.join("processes")
    }

    /// What a process is started with. It holds environment variables, which may be secrets.
    pub fn process(&self, id: &ContainerId) -> PathBuf {
        self.processes().join(format!("{}.start", cut(id)))
    }

    /// How much of a process's output is in its log.
    pub fn process_position(&self, id: &ContainerId) -> PathBuf {
        self.processes().join(format!("{}.position", cut(id)))
    }

    /// The directory of a pod machine's share, below which the volumes of processes are mounted.
    pub fn volumes(&self, id: &ContainerId) -> PathBuf {
        self.processes().join(format!("{}.volumes", cut(id)))
    }

    /// Process ID and start of the server of that share.
    pub fn share_server(&self, id: &ContainerId) -> PathBuf {
        self.processes().join(format!("{}.server", cut(id)))
    }

    /// Process ID and start of the server of another share.
    pub fn server_of_tag(&self, id: &ContainerId, tag: &str) -> PathBuf {
        self.processes().join(format!("{}.{tag}.server", cut(id)))
    }

    /// Directory of all seed images that no disk of a virtual machine is there for.
    pub fn seeds(&self) -> PathBuf {
        self.state.join("seeds")
    }

    /// The seed image of a container.
    pub fn seed(&self, id: &ContainerId) -> PathBuf {
        self.seeds().join(format!("{}.iso", cut(id)))
    }

    /// The beginning of the id that a file name in [`Self::pods`] or [`Self::consoles`] belongs to.
    pub fn owner(name: &str) -> Option<&str> {
        name.get(..DIGITS)
    }
}

fn cut<K: podspec::Kind>(id: &Id<K>) -> &str {
    &id.as_str()[..DIGITS]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_a_container_belongs_to_its_id() {
        let paths = Paths::new(Path::new("/var/lib/vmlet"));
        let id = ContainerId::generate();
        for path in [
            paths.console_file(&id),
            crate::vm::console::socket(&paths.console_file(&id)),
            paths.seed(&id),
            paths.sockets(&id),
            paths.default_log(&id),
            paths.process(&id),
            paths.process_position(&id),
            paths.volumes(&id),
            paths.share_server(&id),
            paths.server_of_tag(&id, "vmlet-0"),
        ] {
            let name = path.file_name().unwrap().to_str().unwrap();
            assert!(id.as_str().starts_with(Paths::owner(name).unwrap()));
        }
        assert_eq!(Paths::owner("short"), None);
    }

    #[test]
    fn the_console_socket_fits_into_a_socket_address() {
        let paths = Paths::new(Path::new("/var/lib/vmlet"));
        let id = ContainerId::generate();
        let sockets = [paths.console_socket(&id), paths.console_offer(&id)];
        let longest = sockets.iter().max_by_key(|path| path.as_os_str().len());
        let longest = longest.unwrap();
        assert!(longest.as_os_str().len() < 70, "{}", longest.display());
    }
}
