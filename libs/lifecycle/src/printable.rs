//! The printable status of a machine.
//!
//! Invariant: the first rule that matches gives the status; the order of rules is part of the
//! interface.
//! Failure: `Unknown` when none fits.

use crds::conditions::{
    BOOTSTRAP_READY, CLASS_READY, CREATED, DATA_VOLUMES_READY, FAILURE, IMAGE_READY,
    LOCATION_VALID, NETWORK_READY, PLACEMENT_READY, REVERT_SUCCEEDED, SOURCE_READY, STORAGE_READY,
    find,
};
use crds::vm::PrintableStatus as Word;
use crds::{PowerState, VirtualMachineStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::backoff;
use crate::decision::{Action, Patch};
use crate::instance::{EndCause, Instance, Unstartable};
use crate::phase::Phase;
use crate::start::set_to_start;
use crate::strategy::Strategy;
use crate::{Deletion, Pending, StartPreconditions, Volumes};

/// What the status depends on.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// What is wanted.
    pub strategy: Strategy,
    /// Whether the machine is being deleted.
    pub deletion: Deletion,
    /// The status that this pass writes.
    pub status: &'a VirtualMachineStatus,
    /// The pod.
    pub instance: Option<&'a Instance>,
    /// What a start waits for.
    pub preconditions: &'a StartPreconditions,
    /// What this pass does.
    pub action: &'a Action,
    /// Now.
    pub now: &'a Time,
}

/// The status, by the first rule that matches.
#[must_use]
pub fn printable(view: &View<'_>) -> Word {
    let rules = [
        (view.deletion != Deletion::No).then_some(Word::Terminating),
        view.stopping(),
        view.on(),
        view.suspended(),
        view.volumes(),
        view.unstartable(),
        view.starting(),
        view.down(),
    ];
    rules.into_iter().flatten().next().unwrap_or(Word::Unknown)
}

/// The status of a machine that waits for what it is made of: the part that is missing gives the
/// word.
#[must_use]
pub fn with_obstacle(word: Word, conditions: &[Condition]) -> Word {
    if !matches!(word, Word::Provisioning | Word::Starting) {
        return word;
    }
    let is_missing = |kind: &str| find(conditions, kind).is_some_and(|c| c.status == "False");
    let mut parts = PARTS.into_iter();
    let missing = parts.find(|(kind, _)| is_missing(kind));
    missing.map_or(word, |(_, word)| word)
}

/// What keeps a machine from its desired state: the failure of the last pass, or else the first of
/// its parts that is missing.
#[must_use]
pub fn obstacle(conditions: &[Condition]) -> Option<String> {
    let failure = find(conditions, FAILURE);
    let part = || {
        let parts = PARTS.into_iter().map(|(kind, _)| kind);
        // The scheduler knows only that the claim of a data volume is missing.
        let others = [
            DATA_VOLUMES_READY,
            SOURCE_READY,
            CREATED,
            PLACEMENT_READY,
            LOCATION_VALID,
            REVERT_SUCCEEDED,
        ];
        let mut parts = parts.chain(others);
        parts.find_map(|kind| find(conditions, kind).filter(|c| c.status == "False"))
    };
    let message = failure.or_else(part).map(|c| c.message.clone());
    message.filter(|text| !text.is_empty())
}

/// The parts of a machine, in the order in which it needs them.
const PARTS: [(&str, Word); 5] = [
    (CLASS_READY, Word::ErrorClass),
    (IMAGE_READY, Word::ErrorImage),
    (STORAGE_READY, Word::ErrorStorage),
    (BOOTSTRAP_READY, Word::ErrorBootstrap),
    (NETWORK_READY, Word::ErrorNetwork),
];

impl View<'_> {
    fn is_set_to_start(&self) -> bool {
        set_to_start(self.strategy, self.status, self.instance)
    }

    /// No instance, or one that has ended.
    fn is_down(&self) -> bool {
        self.instance.is_none_or(|i| i.phase.is_final())
    }

    fn is_creating(&self) -> bool {
        let is_created = matches!(
            self.action,
            Action::Create { .. } | Action::Patch(Patch::Paused)
        );
        self.instance.is_none() && (is_created || self.preconditions.pending == Pending::Create)
    }

    fn stopping(&self) -> Option<Word> {
        let instance = self.instance.filter(|i| !i.phase.is_final())?;
        let is_ended = match self.action {
            Action::Delete { .. } | Action::Shutdown { .. } => true,
            Action::Save { .. } => !self.preconditions.save_failed,
            _ => false,
        };
        let is_stopping =
            instance.deleting || is_ended || self.preconditions.pending == Pending::Delete;
        is_stopping.then_some(Word::Stopping)
    }

    fn on(&self) -> Option<Word> {
        let instance = self.instance.filter(|i| i.phase == Phase::Running)?;
        Some(match instance.paused {
            Some(_) => Word::Paused,
            None => Word::Running,
        })
    }

    fn suspended(&self) -> Option<Word> {
        let is_saved = self.status.power_state == Some(PowerState::Suspended)
            || self
                .instance
                .is_some_and(|i| i.end == Some(EndCause::Saved));
        let is_left = self.is_down() && !self.is_set_to_start();
        (is_saved && is_left).then_some(Word::Suspended)
    }

    /// What is amiss with the disks; unless the machine is to run, a claim may well be missing.
    fn volumes(&self) -> Option<Word> {
        let is_wanted = self.is_set_to_start();
        match self.preconditions.volumes {
            Volumes::ClaimNotFound if is_wanted => Some(Word::ErrorPvcNotFound),
            Volumes::DataVolumeFailed => Some(Word::DataVolumeError),
            _ if self.obstacle() == Some(Unstartable::Unschedulable) => {
                Some(Word::ErrorUnschedulable)
            }
            Volumes::Provisioning if self.obstacle().is_none() => Some(Word::Provisioning),
            Volumes::Unbound if is_wanted => Some(Word::WaitingForVolumeBinding),
            _ => None,
        }
    }

    fn unstartable(&self) -> Option<Word> {
        Some(match self.obstacle()? {
            Unstartable::Unschedulable => Word::ErrorUnschedulable,
            Unstartable::ErrImagePull => Word::ErrImagePull,
            Unstartable::ImagePullBackOff => Word::ImagePullBackOff,
            Unstartable::InvalidImageName => Word::InvalidImageName,
        })
    }

    fn obstacle(&self) -> Option<Unstartable> {
        match self.instance {
            Some(instance) if instance.phase.is_final() => None,
            Some(instance) => instance.unstartable,
            None => self.preconditions.provisioner,
        }
    }

    fn starting(&self) -> Option<Word> {
        let is_on_its_way = self.instance.is_some_and(|i| {
            matches!(
                i.phase,
                Phase::Pending | Phase::Scheduling | Phase::Scheduled
            )
        });
        (is_on_its_way || self.is_creating()).then_some(Word::Starting)
    }

    fn down(&self) -> Option<Word> {
        if !self.is_down() {
            return None;
        }
        let waits = backoff::left(self.status.start_failure.as_ref(), self.now).is_some();
        Some(if waits && self.is_set_to_start() {
            Word::CrashLoopBackOff
        } else {
            Word::Stopped
        })
    }
}
