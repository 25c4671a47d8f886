//! Machines and instances in compact form.
//!
//! Invariant: "now" is a fixed moment; everything that is not said has an unremarkable value.
//! Failure: an unknown term panics with that term.

use std::collections::BTreeMap;

use crds::vm::{Afterwards, InstanceStatus, StartFailure, StateChangeAction, StateChangeRequest};
use crds::{PowerState, RunStrategy, VirtualMachineSpec, VirtualMachineStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::SignedDuration;
use lifecycle::backoff::Jitter;
use lifecycle::{
    Decision, Deletion, EndCause, Instance, Machine, Meta, Phase, StartPreconditions, Volumes,
    desired,
};

/// The present instance's UID.
pub(crate) const UID: &str = "now";

pub(crate) fn now() -> Time {
    Time("2026-01-01T12:00:00Z".parse().unwrap())
}

/// A time before now.
pub(crate) fn ago(seconds: i64) -> Time {
    later(-seconds)
}

pub(crate) fn later(seconds: i64) -> Time {
    Time(
        now()
            .0
            .checked_add(SignedDuration::from_secs(seconds))
            .unwrap(),
    )
}

/// One machine with everything that a pass looks at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Case {
    pub(crate) spec: VirtualMachineSpec,
    pub(crate) status: VirtualMachineStatus,
    pub(crate) meta: Meta,
    pub(crate) instance: Option<Instance>,
    pub(crate) preconditions: StartPreconditions,
}

impl Case {
    /// `strategy instance requests facts...`
    pub(crate) fn parse(text: &str) -> Self {
        let words: Vec<_> = text.split_whitespace().collect();
        let [strategy, seen, queue, facts @ ..] = words.as_slice() else {
            panic!("too few words: {text:?}");
        };
        let mut case = Self {
            spec: spec(strategy),
            instance: instance(seen),
            ..Self::default()
        };
        case.meta.generation = 1;
        case.status.state_change_requests = requests(queue);
        let same = lifecycle::Strategy::from_spec(&case.spec)
            .ok()
            .map(lifecycle::Strategy::recorded);
        case.status.run_strategy = same;
        case.status.instance = Some(match &case.instance {
            Some(instance) => record(&instance.uid, "Running", None),
            None => record("gone", "Succeeded", Some(Afterwards::StayDown)),
        });
        for fact in facts {
            case.fact(fact);
        }
        case
    }

    fn fact(&mut self, fact: &str) {
        match fact {
            "backoff" => self.status.start_failure = Some(failures(2, 30)),
            "held" => self.preconditions.held = Some("poweron.check.vmlet.dev/backup".into()),
            "volumes" => self.preconditions.volumes = Volumes::Provisioning,
            "unbound" => self.preconditions.volumes = Volumes::Unbound,
            "paused" => self.spec.paused = true,
            "saved" => self.status.power_state = Some(PowerState::Suspended),
            "deletion" => self.meta.deletion = Deletion::WithInstance,
            "orphan" => self.meta.deletion = Deletion::Orphan,
            "status=none" => {
                self.status.run_strategy = None;
                self.status.instance = None;
            }
            "status=Halted" => self.status.run_strategy = Some(RunStrategy::Halted),
            "status=Always" => self.status.run_strategy = Some(RunStrategy::Always),
            "follows=down" => self.follow(Afterwards::StayDown),
            "follows=again" => self.follow(Afterwards::StartAgain),
            other => panic!("unknown fact {other:?}"),
        }
    }

    fn follow(&mut self, next: Afterwards) {
        self.status.instance.as_mut().unwrap().afterwards = Some(next);
    }

    pub(crate) fn machine(&self) -> Machine<'_> {
        Machine {
            spec: &self.spec,
            status: &self.status,
            meta: &self.meta,
            instance: self.instance.as_ref(),
            preconditions: &self.preconditions,
        }
    }

    /// One pass, now and without jitter.
    pub(crate) fn pass(&self) -> Decision {
        desired(&self.machine(), &now(), Jitter::default())
    }

    /// One pass whose status is written.
    pub(crate) fn step(&mut self) -> Decision {
        let decision = self.pass();
        self.status = decision.status.clone();
        decision
    }
}

pub(crate) fn failures(count: u32, retry_in_seconds: i64) -> StartFailure {
    StartFailure {
        consecutive_fail_count: count,
        last_failed_uid: Some("before".into()),
        retry_after_timestamp: Some(later(retry_in_seconds)),
    }
}

fn record(uid: &str, phase: &str, afterwards: Option<Afterwards>) -> InstanceStatus {
    InstanceStatus {
        uid: uid.into(),
        phase: Some(phase.into()),
        afterwards,
        ..InstanceStatus::default()
    }
}

pub(crate) fn spec(word: &str) -> VirtualMachineSpec {
    let mut spec = VirtualMachineSpec::default();
    match word {
        "Always" => spec.run_strategy = Some(RunStrategy::Always),
        "RerunOnFailure" => spec.run_strategy = Some(RunStrategy::RerunOnFailure),
        "Manual" => spec.run_strategy = Some(RunStrategy::Manual),
        "Halted" => spec.run_strategy = Some(RunStrategy::Halted),
        "Once" => spec.run_strategy = Some(RunStrategy::Once),
        "PoweredOn" => spec.power_state = Some(PowerState::PoweredOn),
        "PoweredOff" => spec.power_state = Some(PowerState::PoweredOff),
        "Suspended" => spec.power_state = Some(PowerState::Suspended),
        "true" => spec.running = Some(true),
        "false" => spec.running = Some(false),
        "both" => {
            spec.running = Some(true);
            spec.run_strategy = Some(RunStrategy::Manual);
        }
        other => panic!("unknown strategy {other:?}"),
    }
    spec
}

/// `none`, or a phase; then how long it ran (`ran`, `short`, `never`); then `,deleting`.
pub(crate) fn instance(word: &str) -> Option<Instance> {
    let (word, deleting) = match word.strip_suffix(",deleting") {
        Some(word) => (word, true),
        None => (word, false),
    };
    let (phase, ran) = word.split_once('/').unwrap_or((word, "ran"));
    let phase = match phase {
        "none" => return None,
        "pending" => Phase::Pending,
        "scheduling" => Phase::Scheduling,
        "scheduled" => Phase::Scheduled,
        "running" | "halting" => Phase::Running,
        "succeeded" => Phase::Succeeded,
        "failed" => Phase::Failed,
        "unknown" => Phase::Unknown,
        other => panic!("unknown instance {other:?}"),
    };
    let started_at = match ran {
        "ran" => Some(ago(300)),
        "short" => Some(ago(5)),
        "never" => None,
        other => panic!("unknown run {other:?}"),
    };
    let end = match phase {
        Phase::Succeeded => Some(EndCause::GuestShutdown),
        Phase::Failed => Some(EndCause::GuestPanic),
        _ => None,
    };
    let has_begun = phase.is_final() || phase == Phase::Running;
    Some(Instance {
        uid: UID.into(),
        phase,
        deleting,
        grace_seconds: deleting.then_some(300),
        started_at: started_at.filter(|_| has_begun),
        finished_at: end.as_ref().map(|_| now()),
        exit_code: end.as_ref().map(|_| i32::from(phase == Phase::Failed)),
        end,
        message: String::new(),
        disrupted: false,
        unstartable: None,
        paused: (word == "halting").then(|| "PausedByUser".to_owned()),
        pause_message: String::new(),
        ready: Some(phase == Phase::Running),
        revision: None,
        generation: Some(1),
    })
}

/// `-`, or requests with commas: `Start`, `Start:paused`, `Stop=`, `Stop≠`, `Stop∅`.
pub(crate) fn requests(text: &str) -> Vec<StateChangeRequest> {
    let words = text.split(',').filter(|word| *word != "-");
    words.map(request).collect()
}

fn request(word: &str) -> StateChangeRequest {
    let (action, uid) = match word {
        "Start" | "Start:paused" => (StateChangeAction::Start, None),
        "Stop=" => (StateChangeAction::Stop, Some(UID)),
        "Stop≠" => (StateChangeAction::Stop, Some("other")),
        "Stop∅" => (StateChangeAction::Stop, None),
        other => panic!("unknown request {other:?}"),
    };
    let mut data = BTreeMap::new();
    if word == "Start:paused" {
        data.insert("paused".to_owned(), "true".to_owned());
    }
    StateChangeRequest {
        action,
        uid: uid.map(str::to_owned),
        data,
    }
}
