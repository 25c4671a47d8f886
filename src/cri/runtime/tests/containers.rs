//! Calls about containers that are machines, and the states of such a container.
//!
//! Invariant: each call meets a container of its own, in a sandbox of its own.
//! Failure: the answers that kubelet does not expect.

use std::sync::Arc;
use std::time::Duration;

use cri_proto::v1;
use futures_util::{StreamExt as _, stream};
use podspec::{ContainerId, SandboxId};
use strum::{EnumIter, IntoEnumIterator};
use tonic::{Code, Status};

use super::{Answer, Bench, Row, section};
use crate::vm::state::Phase;

/// Longer than the test takes.
const GRACE: Duration = Duration::from_secs(3600);
/// Containers that are made at once.
const ABREAST: usize = 4;

/// A state of a container, as a client meets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Unknown,
    In(Phase),
    SandboxStopped,
    NetworkLost,
    Removed,
}

impl State {
    fn all() -> Vec<Self> {
        let phases = Phase::ALL.map(Self::In);
        let states = [Self::Unknown].into_iter().chain(phases);
        let odd = [Self::SandboxStopped, Self::NetworkLost, Self::Removed];
        states.chain(odd).collect()
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::In(phase) => phase.as_str(),
            Self::SandboxStopped => "in a stopped sandbox",
            Self::NetworkLost => "without network",
            Self::Removed => "removed",
        }
    }

    const fn meaning(self) -> &'static str {
        match self {
            Self::Unknown => "nothing ever had the ID; its sandbox is ready and empty",
            Self::In(Phase::Creating) => "its disk is being made; no list has it",
            Self::In(Phase::Created) => "ready to start",
            Self::In(Phase::Starting) => "its machine is being started, or a start was cut short",
            Self::In(Phase::Running) => "its machine runs",
            Self::In(Phase::Stopping) => "its guest was requested to power off, and runs",
            Self::In(Phase::Exited) => "its machine ended",
            Self::In(Phase::Removing) => "its traces are being removed",
            Self::SandboxStopped => "it was never started, and its sandbox is stopped",
            Self::NetworkLost => "it was never started, and the network of its sandbox vanished",
            Self::Removed => "nothing is left of it; its sandbox is ready and empty",
        }
    }

    /// Whether calls find it by its ID.
    const fn is_found(self) -> bool {
        match self {
            Self::Unknown | Self::In(Phase::Creating) | Self::Removed => false,
            Self::SandboxStopped | Self::NetworkLost => true,
            Self::In(
                Phase::Created
                | Phase::Starting
                | Phase::Running
                | Phase::Stopping
                | Phase::Exited
                | Phase::Removing,
            ) => true,
        }
    }

    const fn runs(self) -> bool {
        matches!(self, Self::In(Phase::Running | Phase::Stopping))
    }
}

/// A call about a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumIter)]
pub(super) enum Call {
    CreateAgain,
    CreateNext,
    Start,
    Stop,
    Remove,
    Status,
    Stats,
    UpdateResources,
    ReopenLog,
    ExecSync,
    Exec,
    Attach,
}

impl Call {
    pub(super) const fn method(self) -> &'static str {
        match self {
            Self::CreateAgain | Self::CreateNext => "CreateContainer",
            Self::Start => "StartContainer",
            Self::Stop => "StopContainer",
            Self::Remove => "RemoveContainer",
            Self::Status => "ContainerStatus",
            Self::Stats => "ContainerStats",
            Self::UpdateResources => "UpdateContainerResources",
            Self::ReopenLog => "ReopenContainerLog",
            Self::ExecSync => "ExecSync",
            Self::Exec => "Exec",
            Self::Attach => "Attach",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::CreateAgain => "CreateContainer, the same request after its answer",
            Self::CreateNext => "CreateContainer, the next attempt",
            _ => self.method(),
        }
    }

    /// The code that clients need.
    const fn expected(self, state: State) -> Code {
        match self {
            Self::Stop | Self::Remove => Code::Ok,
            Self::CreateAgain => match state {
                State::Unknown | State::Removed => Code::Ok,
                State::In(Phase::Creating | Phase::Exited | Phase::Removing) => Code::Ok,
                State::SandboxStopped | State::NetworkLost => Code::FailedPrecondition,
                State::In(Phase::Created | Phase::Starting | Phase::Running | Phase::Stopping) => {
                    Code::FailedPrecondition
                }
            },
            Self::CreateNext => match state {
                State::Unknown | State::Removed => Code::Ok,
                // One that was never started gives way.
                State::NetworkLost => Code::Ok,
                State::In(Phase::Creating | Phase::Created | Phase::Exited | Phase::Removing) => {
                    Code::Ok
                }
                State::SandboxStopped => Code::FailedPrecondition,
                State::In(Phase::Starting | Phase::Running | Phase::Stopping) => {
                    Code::FailedPrecondition
                }
            },
            Self::Start if state.is_found() => match state {
                State::In(Phase::Created | Phase::Starting | Phase::Running) => Code::Ok,
                _ => Code::FailedPrecondition,
            },
            Self::Status | Self::Stats if state.is_found() => Code::Ok,
            Self::UpdateResources if state.is_found() => match state {
                State::In(Phase::Removing) => Code::FailedPrecondition,
                _ => Code::Ok,
            },
            Self::ReopenLog | Self::ExecSync | Self::Exec | Self::Attach if state.is_found() => {
                if state.runs() {
                    Code::Ok
                } else {
                    Code::FailedPrecondition
                }
            }
            Self::Start
            | Self::Status
            | Self::Stats
            | Self::UpdateResources
            | Self::ReopenLog
            | Self::ExecSync
            | Self::Exec
            | Self::Attach => Code::NotFound,
        }
    }

    async fn send(self, bench: &Bench, sandbox: &str, id: &str) -> Result<&'static str, Status> {
        let pods = &bench.pods;
        let container_id = id.to_owned();
        match self {
            Self::CreateAgain => {
                let made = Box::pin(pods.create_container(bench.machine(sandbox, 0))).await?;
                assert_ne!(made.container_id, id);
                return Ok("a new container");
            }
            Self::CreateNext => {
                let made = Box::pin(pods.create_container(bench.machine(sandbox, 1))).await?;
                assert_ne!(made.container_id, id);
                return Ok("a new container");
            }
            Self::Start => {
                let request = v1::StartContainerRequest { container_id };
                pods.start_container(request).await?;
            }
            Self::Stop => {
                let request = v1::StopContainerRequest {
                    container_id,
                    timeout: 0,
                };
                pods.stop_container(request).await?;
            }
            Self::Remove => {
                let request = v1::RemoveContainerRequest { container_id };
                pods.remove_container(request).await?;
            }
            Self::Status => {
                let request = v1::ContainerStatusRequest {
                    container_id,
                    verbose: true,
                };
                let status = pods.container_status(request).await?.status.unwrap();
                return Ok(status.state().as_str_name());
            }
            Self::Stats => {
                let request = v1::ContainerStatsRequest { container_id };
                let stats = pods.container_stats(request).await?.stats.unwrap();
                assert_eq!(stats.attributes.unwrap().id, id);
            }
            Self::UpdateResources => {
                let resources = v1::LinuxContainerResources {
                    cpu_shares: 512,
                    ..v1::LinuxContainerResources::default()
                };
                let request = v1::UpdateContainerResourcesRequest {
                    container_id,
                    linux: Some(resources),
                    ..v1::UpdateContainerResourcesRequest::default()
                };
                pods.update_container_resources(request).await?;
            }
            Self::ReopenLog => {
                let request = v1::ReopenContainerLogRequest { container_id };
                pods.reopen_container_log(request).await?;
            }
            Self::ExecSync => {
                let request = v1::ExecSyncRequest {
                    container_id,
                    cmd: vec!["true".to_owned()],
                    timeout: 60,
                };
                assert_eq!(pods.exec_sync(request).await?.exit_code, 0);
            }
            Self::Exec => {
                let request = v1::ExecRequest {
                    container_id,
                    cmd: vec!["true".to_owned()],
                    stdout: true,
                    ..v1::ExecRequest::default()
                };
                assert!(!pods.exec(request).await?.url.is_empty());
                return Ok("a URL");
            }
            Self::Attach => {
                let request = v1::AttachRequest {
                    container_id,
                    stdout: true,
                    ..v1::AttachRequest::default()
                };
                assert!(!pods.attach(request).await?.url.is_empty());
                return Ok("a URL");
            }
        }
        Ok("")
    }
}

/// A container in the state, in this sandbox.
async fn reach(bench: &Bench, sandbox: &str, state: State) -> ContainerId {
    if state == State::Unknown {
        return ContainerId::generate();
    }
    let made = Box::pin(bench.pods.create_container(bench.machine(sandbox, 0))).await;
    let id: ContainerId = made.unwrap().container_id.parse().unwrap();
    let node = &bench.node;
    let phase = match state {
        State::Unknown => return id,
        State::Removed => {
            node.containers.remove(&id).await.unwrap();
            return id;
        }
        State::SandboxStopped => {
            let sandbox: SandboxId = sandbox.parse().unwrap();
            node.sandboxes.stop(&sandbox).await.unwrap();
            return id;
        }
        State::NetworkLost => {
            node.network.lose(&sandbox.parse().unwrap());
            return id;
        }
        State::In(phase) => phase,
    };
    match phase {
        Phase::Created => {}
        // As by a daemon that ended in the middle.
        Phase::Creating | Phase::Starting | Phase::Removing => {
            node.force(&id, |row| row.phase = phase).await;
        }
        Phase::Running => node.containers.start(&id).await.unwrap(),
        Phase::Stopping => {
            node.containers.start(&id).await.unwrap();
            let containers = Arc::clone(&node.containers);
            let stopped = id.clone();
            tokio::spawn(async move { containers.stop(&stopped, GRACE).await });
            node.until(&id, |row| row.phase == Phase::Stopping).await;
        }
        Phase::Exited => {
            node.containers.start(&id).await.unwrap();
            node.containers.stop(&id, Duration::ZERO).await.unwrap();
        }
    }
    id
}

async fn ask(bench: &Bench, call: Call, state: State) -> Answer {
    let name = bench.name();
    let sandbox = bench.ready(&name).await;
    let id = Box::pin(reach(bench, &sandbox, state)).await;
    let outcome = Box::pin(call.send(bench, &sandbox, id.as_str())).await;
    let phase = match state {
        State::In(phase) => phase,
        _ => Phase::Created,
    };
    let in_state = format!("is {phase}");
    let in_brackets = format!("({phase})");
    let names = [
        (id.as_str(), "CONTAINER"),
        (sandbox.as_str(), "SANDBOX"),
        (in_state.as_str(), "is STATE"),
        (in_brackets.as_str(), "(STATE)"),
        (name.as_str(), "POD"),
    ];
    let answer = Answer::new(outcome, &names);
    bench.clear(&sandbox).await;
    answer
}

/// The section of containers.
pub(super) async fn table(bench: &Bench) -> String {
    let mut rows = Vec::new();
    let mut wrong = Vec::new();
    for call in Call::iter() {
        let states = State::all();
        let answers = states.iter().map(|state| ask(bench, call, *state));
        let answers: Vec<_> = stream::iter(answers).buffered(ABREAST).collect().await;
        let mut row = Row::new(call.name());
        for (state, answer) in states.into_iter().zip(answers) {
            if answer.code != call.expected(state) {
                wrong.push(format!("{call:?} of {state:?}: {}", answer.shown()));
            }
            row.add(state.word(), answer);
        }
        rows.push(row);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let states = State::all();
    let meanings: Vec<_> = states.iter().map(|s| (s.word(), s.meaning())).collect();
    section("Containers", &meanings, &rows)
}
