//! What is known of a container beyond its row, for verbose answers.
//!
//! Invariant: answered from memory; nothing is asked of libvirt or the guest.
//! Failure: none; what is not known is absent.

use std::path::PathBuf;

use libvirt::Hypervisor;

use super::model::Container;
use super::service::Containers;
use crate::sandbox::PodNetwork;

/// Where the parts of a machine are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The socket that leads to the serial console while the machine runs.
    pub console_socket: PathBuf,
    /// The file that QEMU appends the console to.
    pub console_file: PathBuf,
    /// The root disk.
    pub root_disk: PathBuf,
    /// `kvm` or `tcg`, once chosen.
    pub accelerator: Option<String>,
}

impl<H: Hypervisor, N: PodNetwork> Containers<H, N> {
    /// What is known of a container.
    pub fn facts(&self, row: &Container) -> Facts {
        Facts {
            console_socket: self.paths.console_socket(&row.id),
            console_file: self.paths.console_file(&row.id),
            root_disk: self.paths.root_disk(&row.sandbox),
            accelerator: self
                .accelerator()
                .map(|choice| choice.accelerator.to_string()),
        }
    }
}
