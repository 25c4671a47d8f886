//! Facts about a container beyond its row, for verbose replies.
//!
//! Invariant: no call is made of libvirt or the guest; the process is looked for in the kernel's
//! list.
//! Failure: none; what is not known, or does not answer in time, is absent.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::platform::Platform;
use crate::vm::console;
use crate::vm::model::Container;
use crate::vm::service::Containers;

/// How long a console may take to be found.
const ANSWER: Duration = Duration::from_secs(2);

/// Where the parts of a machine are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The socket that leads to the serial console while the machine runs.
    pub console_socket: PathBuf,
    /// The file that QEMU appends the console to.
    pub console_file: PathBuf,
    /// The root disk.
    pub root_disk: PathBuf,
    /// The emulator's process, where it runs and the daemon sees it.
    pub pid: Option<i32>,
    /// `kvm` or `tcg`, once chosen.
    pub accelerator: Option<String>,
}

impl<P: Platform> Containers<P> {
    /// What is known of a container.
    pub async fn facts(&self, row: &Container) -> Facts {
        Facts {
            pid: self.pid(row).await,
            console_socket: self.served_console(row).await,
            console_file: self.paths.console_file(&row.id),
            root_disk: self.root_disk(row),
            accelerator: self
                .accelerator()
                .map(|choice| choice.accelerator.to_string()),
        }
    }

    /// How many running machines would end with the containers of the daemon's own pod, because
    /// they were not moved their processes out of its cgroup.
    pub async fn bound(&self) -> u32 {
        let mut running = self.list();
        running.retain(|row| row.phase.runs());
        let machine = |row: &Arc<Container>| (row.id.clone(), self.emulator(row));
        let machines = running.iter().map(machine).collect();
        u32::try_from(self.meter.bound(machines).await).unwrap_or(u32::MAX)
    }

    /// Ours, or that of libvirt.
    async fn served_console(&self, row: &Container) -> PathBuf {
        let of_libvirt = self.paths.console_socket(&row.id);
        if !row.phase.runs() || row.is_process() {
            return of_libvirt;
        }
        match timeout(ANSWER, self.serves_console(&row.id)).await {
            Ok(Ok(true)) => console::socket(&self.paths.console_file(&row.id)),
            _ => of_libvirt,
        }
    }

    async fn pid(&self, row: &Container) -> Option<i32> {
        if !row.phase.runs() {
            return None;
        }
        let emulator = self.emulator(row);
        self.meter
            .at_machine(row.id.clone(), emulator, |pid| pid)
            .await
    }
}
