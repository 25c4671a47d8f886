//! What the fake hypervisor keeps: its domains, and how it is to behave.
//!
//! Invariant: without a knob it behaves as a hypervisor that works, whose guests have no agent.
//! Failure: none here.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use uuid::Uuid;

use super::disks::{Job, LateSwitch};
use super::faults::Missed;
use crate::{Cable, FailedDisk, MachineElement, Pause, Shutdown, Size, State};

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) domains: BTreeMap<Uuid, FakeDomain>,
    pub(super) connected: bool,
    pub(super) refusal: Option<String>,
    pub(super) guest_ignores: bool,
    pub(super) guest_keeps: bool,
    pub(super) agent: Option<VecDeque<Value>>,
    pub(super) commands: Vec<Value>,
    pub(super) shutdowns: Vec<(Uuid, Shutdown)>,
    pub(super) reboots: Vec<(Uuid, Option<Shutdown>)>,
    pub(super) cables: Vec<(String, Cable, bool)>,
    pub(super) stats_calls: usize,
    pub(super) hangs: bool,
    /// Also of domains that no longer exist.
    pub(super) resumes: BTreeMap<Uuid, usize>,
    pub(super) restores_outlive_kills: bool,
    /// Why a switch of a disk fails, and whether it takes place all the same.
    pub(super) switch_failure: Option<(String, bool)>,
    pub(super) is_locked: bool,
    /// How long an agent takes for each answer.
    pub(super) agent_pause: Duration,
    /// How many orders to agents get no turn.
    pub(super) busy_orders: usize,
    /// How long each of them waits for it.
    pub(super) order_wait: Duration,
    /// What a guest that runs while its memory is written fills its file with, until that is aborted.
    pub(super) busy_memory: Option<u64>,
    /// What libvirt writes of the memory of a busy guest at present.
    pub(super) busy_save: Option<PathBuf>,
    /// Whether guests ran while their memory was written with a switch, the earliest first.
    pub(super) memory_switches: Vec<bool>,
    /// A switch that a client has left behind.
    pub(super) late_switch: Option<LateSwitch>,
    /// Block jobs make no progress.
    pub(super) holds_jobs: bool,
    /// How many requests to pull wait for an answer, which none gets then.
    pub(super) held_pulls: Option<usize>,
    /// Why the end of a block job by a pivot fails, and whether it takes place all the same.
    pub(super) pivot_failure: Option<(String, bool)>,
    /// Calls that end with their deadline, by name.
    pub(super) missed: BTreeMap<&'static str, Missed>,
    /// Domains whose start has missed its deadline and goes on.
    pub(super) late_starts: Vec<Uuid>,
    /// Why the next start fails after its emulator has begun.
    pub(super) partial_start: Option<String>,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            domains: BTreeMap::new(),
            connected: true,
            refusal: None,
            guest_ignores: false,
            guest_keeps: false,
            agent: None,
            commands: Vec::new(),
            shutdowns: Vec::new(),
            reboots: Vec::new(),
            cables: Vec::new(),
            stats_calls: 0,
            hangs: false,
            restores_outlive_kills: false,
            resumes: BTreeMap::new(),
            switch_failure: None,
            is_locked: false,
            agent_pause: Duration::ZERO,
            busy_orders: 0,
            order_wait: Duration::ZERO,
            busy_memory: None,
            busy_save: None,
            memory_switches: Vec::new(),
            late_switch: None,
            holds_jobs: false,
            held_pulls: None,
            pivot_failure: None,
            missed: BTreeMap::new(),
            late_starts: Vec::new(),
            partial_start: None,
        }
    }
}

#[derive(Debug)]
pub(super) struct FakeDomain {
    pub(super) name: String,
    pub(super) mark: Option<MachineElement>,
    pub(super) cpu_nanoseconds: u64,
    pub(super) cpus: Vec<u32>,
    pub(super) size: Option<Size>,
    pub(super) xml: String,
    pub(super) state: State,
    pub(super) paused: Option<Pause>,
    /// The disk that fails, for as long as it does: the guest does not run beyond its next request.
    pub(super) fails: Option<FailedDisk>,
    /// The files of its first disk, the one that the guest writes to first.
    pub(super) files: Vec<PathBuf>,
    /// The block job of its first disk.
    pub(super) job: Option<Job>,
}
