//! What the daemon needs from a hypervisor.
//!
//! Invariant: a call that may be repeated says so; one that changes what a running emulator does says what shows
//! whether it took place.
//! Failure: [`crate::Error`] of each call.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::broadcast::{self, error::RecvError};
use uuid::Uuid;

use crate::guest::AgentReply;
use crate::{
    BlockCommit, BlockJob, BlockJobEnd, Cable, DomainInfo, DomainStats, DomainType, Event,
    FailedDisk, MemorySwitch, OpenFile, Power, Result, Shutdown, Size, State,
};

/// What the daemon needs from a hypervisor.
pub trait Hypervisor: Send + Sync + 'static {
    /// Makes a domain known from its XML, replacing a definition with the same UUID. The wait for the
    /// turn of the call ends with an error when `given_up` does; a call that has begun goes on.
    fn define_unless(
        &self,
        xml: String,
        given_up: impl Future<Output = ()> + Send,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Starts a defined domain; returns when the emulator runs. `given_up` as in
    /// [`Self::define_unless`].
    fn start_unless(
        &self,
        domain: Uuid,
        given_up: impl Future<Output = ()> + Send,
    ) -> impl Future<Output = Result<()>> + Send;
    /// The same, but the guest does not run before [`Self::resume`].
    fn start_paused_unless(
        &self,
        domain: Uuid,
        given_up: impl Future<Output = ()> + Send,
    ) -> impl Future<Output = Result<()>> + Send;
    /// [`Self::define_unless`], which is not given up.
    fn define(&self, xml: String) -> impl Future<Output = Result<()>> + Send {
        self.define_unless(xml, std::future::pending())
    }
    /// [`Self::start_unless`], which is not given up.
    fn start(&self, domain: Uuid) -> impl Future<Output = Result<()>> + Send {
        self.start_unless(domain, std::future::pending())
    }
    /// Requests the guest to power off and returns at once.
    fn shutdown(&self, domain: Uuid, how: Shutdown) -> impl Future<Output = Result<()>> + Send;
    /// Requests a reboot from the guest and returns at once; [`Event::Reset`] reports it. A guest
    /// that handles the power button powers off, and the hypervisor boots it again.
    fn reboot(&self, domain: Uuid, how: Shutdown) -> impl Future<Output = Result<()>> + Send;
    /// Presses the reset button.
    fn reset(&self, domain: Uuid) -> impl Future<Output = Result<()>> + Send;
    /// Keeps the guest from running; success when it does not run already.
    fn suspend(&self, domain: Uuid) -> impl Future<Output = Result<()>> + Send;
    /// Lets the guest run; success when it does already.
    fn resume(&self, domain: Uuid) -> impl Future<Output = Result<()>> + Send;
    /// Writes the machine's memory to a file that libvirt's user may make, and ends the machine.
    /// The file is complete once [`crate::is_saved_memory`] returns true, which it does before the machine
    /// has ended.
    fn save(&self, domain: Uuid, file: PathBuf) -> impl Future<Output = Result<()>> + Send;
    /// Makes a [`Self::save`] in progress fail, after which the guest runs on.
    fn abort_save(&self, domain: Uuid) -> impl Future<Output = Result<()>> + Send;
    /// Requests the end of whatever writes the memory of a domain, of this process or of one that has gone; false when
    /// nothing does any more.
    fn end_save(&self, domain: Uuid) -> impl Future<Output = Result<bool>> + Send;
    /// Starts a defined domain from saved memory with this description. The guest does not run
    /// before [`Self::resume`]. `given_up` as in [`Self::define_unless`]: the wait may be long.
    fn restore(
        &self,
        xml: String,
        file: PathBuf,
        given_up: impl Future<Output = ()> + Send,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Plugs the cable of a NIC of a running emulator in, or pulls it; `nic` is the emulator's name
    /// of the device. The same again is success.
    fn cable(
        &self,
        domain: Uuid,
        nic: String,
        cable: Cable,
    ) -> impl Future<Output = Result<()>> + Send;
    /// More about what a domain is doing than [`Self::state`]; `None` when it does not exist.
    fn power(&self, domain: Uuid) -> impl Future<Output = Result<Option<Power>>> + Send;
    /// The disks of a running emulator whose last requests failed; none when all of them work.
    fn failed_disks(&self, domain: Uuid) -> impl Future<Output = Result<Vec<FailedDisk>>> + Send;
    /// Lets a running emulator write to another file from now on: an empty overlay on the file of its
    /// first disk, which it only reads from then on, and has written all of to the device. After an
    /// error, [`Self::root_file`] alone shows whether it does.
    fn switch_root(&self, domain: Uuid, file: PathBuf) -> impl Future<Output = Result<()>> + Send;
    /// As [`Self::switch_root`], with the memory of the guest at the moment of the switch, in a file that libvirt's user
    /// may make. The file is complete before the switch. The guest runs on; it stands still from the last page that is
    /// written to the switch, at least. [`Self::abort_save`] makes it fail.
    fn switch_root_with_memory(
        &self,
        domain: Uuid,
        to: MemorySwitch,
    ) -> impl Future<Output = Result<()>> + Send;
    /// The file that the first disk of a running emulator writes to, once no [`Self::switch_root`] is in
    /// progress; `None` when there is no emulator.
    fn root_file(&self, domain: Uuid) -> impl Future<Output = Result<Option<PathBuf>>> + Send;
    /// Begins a block job that copies a file of the first disk of a running emulator, with nothing but the next
    /// one below it, to that one, and returns at once: see [`Self::root_job`]. A copy of a file that the guest does
    /// not write to ends by itself, and leaves the emulator without that file.
    fn commit_root(
        &self,
        domain: Uuid,
        commit: BlockCommit,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Begins a block job that copies all that the first disk of a running emulator has of the files below the
    /// upper one into that one, and returns at once: see [`Self::root_job`]. It ends by itself, and leaves the emulator
    /// without those files: the header of the upper one then names none, also where what was copied is not on the
    /// device yet. One that is [ended](Self::end_root_job) before leaves the header as it was.
    fn pull_root(
        &self,
        domain: Uuid,
        bytes_per_second: u64,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Has a running emulator write all that it has for its first disk to the device. Success is no proof: emulators
    /// do not report each failure.
    fn flush_root(&self, domain: Uuid) -> impl Future<Output = Result<()>> + Send;
    /// The block job of the first disk of a running emulator; `None` when there is none.
    fn root_job(&self, domain: Uuid) -> impl Future<Output = Result<Option<BlockJob>>> + Send;
    /// Ends the block job of the first disk of a running emulator; an error when there is none. After an error,
    /// [`Self::root_job`] and [`Self::root_file`] show what has happened.
    fn end_root_job(
        &self,
        domain: Uuid,
        end: BlockJobEnd,
    ) -> impl Future<Output = Result<()>> + Send;
    /// The files that a running emulator has open for its disks, once no other change of them is in progress; `None`
    /// when there is no emulator.
    fn disk_files(
        &self,
        domain: Uuid,
    ) -> impl Future<Output = Result<Option<Vec<OpenFile>>>> + Send;
    /// What libvirt made of the machine type that was requested; `None` when it does not say or no
    /// such domain exists.
    fn machine_type(&self, domain: Uuid) -> impl Future<Output = Result<Option<String>>> + Send;
    /// Whether the guest's instructions are translated by software; `None` when no such domain
    /// exists.
    fn is_emulated(&self, domain: Uuid) -> impl Future<Output = Result<Option<bool>>> + Send;
    /// Kills the emulator; success when it does not run or does not exist. Success is the proof
    /// that it has ended: just after libvirt's restart the event may be missing.
    fn destroy(&self, domain: Uuid) -> impl Future<Output = Result<()>> + Send;
    /// Forgets a domain that does not run; success when it does not exist.
    fn undefine(&self, domain: Uuid) -> impl Future<Output = Result<()>> + Send;
    /// What a domain is doing; `None` when it does not exist.
    fn state(&self, domain: Uuid) -> impl Future<Output = Result<Option<State>>> + Send;
    /// All domains that carry our metadata element, running or not.
    fn list(&self) -> impl Future<Output = Result<Vec<DomainInfo>>> + Send;
    /// The file that a domain's first serial port is logged to; `None` when it has none or does not
    /// exist.
    fn console_file(&self, domain: Uuid) -> impl Future<Output = Result<Option<PathBuf>>> + Send;
    /// What all running domains have used, ours and others, in one request that asks no emulator.
    fn stats(&self) -> impl Future<Output = Result<Vec<DomainStats>>> + Send;
    /// Lets virtual CPUs and main thread of a running emulator run on these CPUs of the node only.
    /// Without cgroups of its own libvirt leaves the emulator's other threads where they are.
    fn pin(&self, domain: Uuid, cpus: Vec<u32>) -> impl Future<Output = Result<()>> + Send;
    /// What a running emulator has of virtual CPUs and memory.
    fn size(&self, domain: Uuid) -> impl Future<Output = Result<Size>> + Send;
    /// Plugs virtual CPUs of a running machine in, or requests the guest to let the last ones go.
    /// Returns before the guest has done anything: see [`Self::size`].
    fn set_vcpus(&self, domain: Uuid, vcpus: u16) -> impl Future<Output = Result<()>> + Send;
    /// Requests a running guest to use this many bytes on top of those that it was started with.
    /// Returns before the guest has done anything: see [`Self::size`].
    fn set_memory(&self, domain: Uuid, bytes: u64) -> impl Future<Output = Result<()>> + Send;
    /// Sends one QEMU guest agent command.
    fn agent(
        &self,
        domain: Uuid,
        command: Value,
        deadline: Duration,
    ) -> impl Future<Output = Result<AgentReply>> + Send;
    /// Calls to the agents of guests are shared among namespaces: that of this domain. Until it is
    /// known the domain counts for itself.
    fn set_namespace(&self, _domain: Uuid, _namespace: &Arc<str>) {}
    /// Versions of the library and the emulator; proves that the hypervisor answers.
    fn versions(&self) -> impl Future<Output = Result<Versions>> + Send;
    /// The versions of the board q35 that the emulator has, oldest first.
    fn machine_types(&self) -> impl Future<Output = Result<Vec<String>>> + Send;
    /// The named CPU models that machines of this type can have on this node with `emulator`.
    fn cpu_models(
        &self,
        emulator: PathBuf,
        kind: DomainType,
    ) -> impl Future<Output = Result<Vec<String>>> + Send;
    /// Has libvirt execute `program` as it does before it starts a machine with this emulator. It
    /// remembers a program that works until the file changes; what it may not execute, or what does
    /// not answer as QEMU does, is refused each time.
    fn check_emulator(&self, program: PathBuf) -> impl Future<Output = Result<()>> + Send;
    /// Whether the connection is up now, from memory.
    fn is_connected(&self) -> bool;
    /// Domain and connection events from now on.
    fn events(&self) -> broadcast::Receiver<Event>;
    /// Ends when the connection is up, or will never be again.
    fn connected(&self) -> impl Future<Output = ()> + Send {
        async {
            let mut events = self.events();
            // Missed events may have been the one; the next query shows it.
            while !self.is_connected() {
                if let Err(RecvError::Closed) = events.recv().await {
                    return;
                }
            }
        }
    }
}

/// Versions, as `major.minor.release`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versions {
    /// The libvirt daemon.
    pub libvirt: String,
    /// The QEMU it starts; empty when it has not probed one.
    pub qemu: String,
}
