//! Calls about sandboxes, and the states of a sandbox.
//!
//! Invariant: each call meets a sandbox of its own.
//! Failure: the answers that kubelet does not expect.

use cri_proto::v1;
use podspec::SandboxId;
use strum::{EnumIter, IntoEnumIterator};
use tonic::{Code, Status};

use super::{Answer, Bench, Row, section};
use crate::sandbox::state::Phase;

/// A state of a sandbox, as a client meets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Unknown,
    In(Phase),
    NetworkLost,
    Removed,
}

impl State {
    fn all() -> Vec<Self> {
        let phases = Phase::ALL.map(Self::In);
        let states = [Self::Unknown].into_iter().chain(phases);
        states.chain([Self::NetworkLost, Self::Removed]).collect()
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::In(phase) => phase.as_str(),
            Self::NetworkLost => "without network",
            Self::Removed => "removed",
        }
    }

    const fn meaning(self) -> &'static str {
        match self {
            Self::Unknown => "nothing ever had the ID",
            Self::In(Phase::Creating) => "its network is being made; no list has it",
            Self::In(Phase::Ready) => "its network is up",
            Self::In(Phase::Stopping) => "its machine and its network are being taken down",
            Self::In(Phase::Stopped) => "only its record and its disk are left",
            Self::In(Phase::Removing) => "its disk and its record are being removed",
            Self::NetworkLost => {
                "it was ready and its network vanished; the next round of reconciliation stops it"
            }
            Self::Removed => "nothing is left of it",
        }
    }

    /// Whether calls find it by its ID.
    const fn is_found(self) -> bool {
        match self {
            Self::Unknown | Self::In(Phase::Creating) | Self::Removed => false,
            Self::In(Phase::Ready | Phase::Stopping | Phase::Stopped | Phase::Removing) => true,
            Self::NetworkLost => true,
        }
    }
}

/// A call about a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumIter)]
pub(super) enum Call {
    RunAgain,
    RunOther,
    Stop,
    Remove,
    Status,
    Stats,
    UpdateResources,
    PortForward,
    Create,
}

impl Call {
    pub(super) const fn method(self) -> &'static str {
        match self {
            Self::RunAgain | Self::RunOther => "RunPodSandbox",
            Self::Stop => "StopPodSandbox",
            Self::Remove => "RemovePodSandbox",
            Self::Status => "PodSandboxStatus",
            Self::Stats => "PodSandboxStats",
            Self::UpdateResources => "UpdatePodSandboxResources",
            Self::PortForward => "PortForward",
            Self::Create => "CreateContainer",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::RunAgain => "RunPodSandbox, the same request for the pod and attempt",
            Self::RunOther => "RunPodSandbox, another request for the pod and attempt",
            Self::Create => "CreateContainer, the first one of the sandbox",
            _ => self.method(),
        }
    }

    /// The code that clients need.
    const fn expected(self, state: State) -> Code {
        match self {
            Self::Stop | Self::Remove => Code::Ok,
            Self::RunAgain => match state {
                State::Unknown | State::Removed => Code::Ok,
                State::In(Phase::Creating | Phase::Ready) | State::NetworkLost => Code::Ok,
                State::In(Phase::Stopping | Phase::Stopped | Phase::Removing) => {
                    Code::AlreadyExists
                }
            },
            Self::RunOther => match state {
                State::Unknown | State::Removed | State::In(Phase::Creating) => Code::Ok,
                State::In(Phase::Ready | Phase::Stopping | Phase::Stopped | Phase::Removing) => {
                    Code::AlreadyExists
                }
                State::NetworkLost => Code::AlreadyExists,
            },
            Self::Status | Self::Stats | Self::UpdateResources if state.is_found() => Code::Ok,
            Self::PortForward if state.is_found() => match state {
                State::In(Phase::Ready) => Code::Ok,
                _ => Code::FailedPrecondition,
            },
            Self::Create if state.is_found() => match state {
                State::In(Phase::Ready) | State::NetworkLost => Code::Ok,
                _ => Code::FailedPrecondition,
            },
            Self::Status
            | Self::Stats
            | Self::UpdateResources
            | Self::PortForward
            | Self::Create => Code::NotFound,
        }
    }

    async fn send(self, bench: &Bench, name: &str, id: &str) -> Result<&'static str, Status> {
        let pods = &bench.pods;
        let pod_sandbox_id = id.to_owned();
        let is_same = |made: &str| {
            if made == id {
                "the same sandbox"
            } else {
                "a new sandbox"
            }
        };
        match self {
            Self::RunAgain => {
                let made = pods.run_pod_sandbox(bench.pod(name, "")).await?;
                return Ok(is_same(&made.pod_sandbox_id));
            }
            Self::RunOther => {
                let made = pods.run_pod_sandbox(bench.pod(name, "other")).await?;
                return Ok(is_same(&made.pod_sandbox_id));
            }
            Self::Stop => {
                let request = v1::StopPodSandboxRequest { pod_sandbox_id };
                pods.stop_pod_sandbox(request).await?;
            }
            Self::Remove => {
                let request = v1::RemovePodSandboxRequest { pod_sandbox_id };
                pods.remove_pod_sandbox(request).await?;
            }
            Self::Status => {
                let request = v1::PodSandboxStatusRequest {
                    pod_sandbox_id,
                    verbose: true,
                };
                let status = pods.pod_sandbox_status(request).await?.status.unwrap();
                return Ok(status.state().as_str_name());
            }
            Self::Stats => {
                let request = v1::PodSandboxStatsRequest { pod_sandbox_id };
                let stats = pods.pod_sandbox_stats(request).await?.stats.unwrap();
                assert_eq!(stats.attributes.unwrap().id, id);
            }
            Self::UpdateResources => {
                let request = v1::UpdatePodSandboxResourcesRequest {
                    pod_sandbox_id,
                    ..v1::UpdatePodSandboxResourcesRequest::default()
                };
                pods.update_pod_sandbox_resources(request).await?;
            }
            Self::PortForward => {
                let request = v1::PortForwardRequest {
                    pod_sandbox_id,
                    port: vec![80],
                };
                let url = pods.port_forward(request).await?.url;
                assert!(!url.is_empty());
                return Ok("a URL");
            }
            Self::Create => {
                let made = Box::pin(pods.create_container(bench.machine(id, 0))).await?;
                assert!(!made.container_id.is_empty());
                return Ok("a new container");
            }
        }
        Ok("")
    }
}

/// A sandbox of this pod in the state; its ID.
async fn reach(bench: &Bench, name: &str, state: State) -> String {
    let phase = match state {
        State::Unknown => return SandboxId::generate().to_string(),
        State::Removed => {
            let id = bench.ready(name).await;
            bench.clear(&id).await;
            return id;
        }
        State::NetworkLost => {
            let id = bench.ready(name).await;
            bench.node.network.lose(&id.parse().unwrap());
            return id;
        }
        State::In(phase) => phase,
    };
    let text = bench.ready(name).await;
    let id: SandboxId = text.parse().unwrap();
    match phase {
        Phase::Ready => {}
        // As by a daemon that ended in the middle.
        Phase::Creating | Phase::Stopping | Phase::Removing => {
            bench.node.force_sandbox(&id, phase).await;
        }
        Phase::Stopped => bench.node.sandboxes.stop(&id).await.unwrap(),
    }
    text
}

async fn ask(bench: &Bench, call: Call, state: State) -> Answer {
    let name = bench.name();
    let id = reach(bench, &name, state).await;
    let outcome = Box::pin(call.send(bench, &name, &id)).await;
    let phase = match state {
        State::In(phase) => phase,
        _ => Phase::Ready,
    };
    let in_state = format!("is {phase}");
    let in_words = format!("{id}, {phase}");
    let names = [
        (in_words.as_str(), "SANDBOX, STATE"),
        (id.as_str(), "SANDBOX"),
        (in_state.as_str(), "is STATE"),
        (name.as_str(), "POD"),
    ];
    let answer = Answer::new(outcome, &names);
    bench.clear(&id).await;
    answer
}

/// The section of sandboxes.
pub(super) async fn table(bench: &Bench) -> String {
    let mut rows = Vec::new();
    let mut wrong = Vec::new();
    for call in Call::iter() {
        let mut row = Row::new(call.name());
        for state in State::all() {
            let answer = ask(bench, call, state).await;
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
    section("Sandboxes", &meanings, &rows)
}
