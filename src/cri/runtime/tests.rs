//! What the daemon answers to each call about a sandbox or a container, in each of its states.
//!
//! Invariant: calls and states are matched exhaustively: a new one compiles only with an answer. What
//! kubelet and crictl need of the codes is in `expected`; the page `docs/cri-answers.md` has the words.
//! Failure: the answers with another code; with other words the page, which `UPDATE_DOCS=1` writes.

mod containers;
mod sandboxes;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cri_proto::v1;
use libvirt::FakeHypervisor;
use serde_json::json;
use strum::IntoEnumIterator;
use tonic::{Code, Status};

use super::Pods;
use crate::streaming::Streaming;
use crate::testkit::{Fake, Node, TIMEOUT};

const FACTS: &str = include_str!("../../../tests/fixtures/cri-fields.tsv");
const PAGE: &str = "docs/cri-answers.md";
const BEGINNING: &str = "\
# What the daemon answers in each state

Clients of the CRI repeat calls, and call what has changed or gone meanwhile. These tables have the
daemon's answer to each call about a sandbox or a container, in each of its states: `OK`, or the code
and the beginning of the message. A test (`src/cri/runtime/tests.rs`) makes every call in every state
and compares its code with what kubelet needs; it writes this page with `UPDATE_DOCS=1`.

- Stop and remove succeed in every state, also where nothing has the ID. All other calls about an ID
  that nothing has are answered with `NotFound`.
- A call that a state does not allow is answered with `FailedPrecondition`, or with `AlreadyExists`
  where another sandbox has the pod and its attempt. No state is answered with `Unknown` or `Internal`.
- Another request may be at work on a sandbox, and a daemon that ended may have left work half done: the
  next call that needs it finishes or undoes that work.
";

/// Longest part of a message on the page.
const LENGTH: usize = 160;

/// An answer as the page shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    code: Code,
    words: String,
}

impl Answer {
    /// `names` are replaced in the message.
    fn new(outcome: Result<&'static str, Status>, names: &[(&str, &str)]) -> Self {
        let status = match outcome {
            Ok(words) => {
                let words = words.to_owned();
                return Self {
                    code: Code::Ok,
                    words,
                };
            }
            Err(status) => status,
        };
        let mut words = status.message().to_owned();
        for (name, shown) in names {
            words = words.replace(name, shown);
        }
        if let Some((end, _)) = words.char_indices().nth(LENGTH) {
            words.truncate(end);
            words.push('…');
        }
        Self {
            code: status.code(),
            words,
        }
    }

    fn shown(&self) -> String {
        match (self.code, self.words.as_str()) {
            (Code::Ok, "") => "OK".to_owned(),
            (Code::Ok, words) => format!("OK: {words}"),
            (code, words) => format!("`{code:?}`: {words}"),
        }
    }
}

/// A node, and the CRI over it.
struct Bench {
    node: Node,
    pods: Pods<Fake>,
    made: AtomicUsize,
    _streaming: Streaming,
}

impl Bench {
    /// Guests do not power off by themselves, and run commands.
    async fn new() -> Self {
        // Both replies to one command, whatever runs at the same time.
        let reply = json!({ "pid": 7, "exited": true, "exitcode": 0 });
        let hypervisor = FakeHypervisor::default()
            .guest_ignores_shutdown()
            .agent_answering(std::iter::repeat_n(reply, 100));
        let node = Node::with(hypervisor).await;
        node.network.give_addresses();
        let address = "127.0.0.1:0".parse().unwrap();
        let streaming = Streaming::bind(address, None).await.unwrap();
        let pods = Pods {
            sandboxes: Arc::clone(&node.sandboxes),
            containers: Arc::clone(&node.containers),
            images: Arc::clone(&node.images),
            state_dir: node.containers.paths().pods(),
            gate: streaming.gate(),
        };
        Self {
            node,
            pods,
            made: AtomicUsize::new(0),
            _streaming: streaming,
        }
    }

    /// A name that no pod has.
    fn name(&self) -> String {
        format!("pod-{}", self.made.fetch_add(1, Ordering::Relaxed))
    }

    /// A request for a sandbox.
    fn pod(&self, name: &str, hostname: &str) -> v1::RunPodSandboxRequest {
        let pod = self.node.pod(name);
        let metadata = v1::PodSandboxMetadata {
            name: name.to_owned(),
            uid: format!("uid-of-{name}"),
            namespace: pod.metadata.namespace,
            attempt: 0,
        };
        let config = v1::PodSandboxConfig {
            metadata: Some(metadata),
            hostname: hostname.to_owned(),
            log_directory: pod.log_directory,
            ..v1::PodSandboxConfig::default()
        };
        v1::RunPodSandboxRequest {
            config: Some(config),
            ..v1::RunPodSandboxRequest::default()
        }
    }

    async fn ready(&self, name: &str) -> String {
        let made = self.pods.run_pod_sandbox(self.pod(name, "")).await;
        made.unwrap().pod_sandbox_id
    }

    /// A request for the machine of a sandbox.
    fn machine(&self, sandbox: &str, attempt: u32) -> v1::CreateContainerRequest {
        let metadata = v1::ContainerMetadata {
            name: "vm".to_owned(),
            attempt,
        };
        let image = v1::ImageSpec {
            image: self.node.image("disk"),
            ..v1::ImageSpec::default()
        };
        let config = v1::ContainerConfig {
            metadata: Some(metadata),
            image: Some(image),
            log_path: format!("vm/{attempt}.log"),
            ..v1::ContainerConfig::default()
        };
        v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            ..v1::CreateContainerRequest::default()
        }
    }

    /// Removes a sandbox with all that is in it, whatever its state.
    async fn clear(&self, sandbox: &str) {
        let pod_sandbox_id = sandbox.to_owned();
        let removal = v1::RemovePodSandboxRequest {
            pod_sandbox_id: pod_sandbox_id.clone(),
        };
        self.pods.remove_pod_sandbox(removal).await.unwrap();
        let look = v1::PodSandboxStatusRequest {
            pod_sandbox_id,
            verbose: false,
        };
        let gone = self.pods.pod_sandbox_status(look).await.unwrap_err();
        assert_eq!(gone.code(), Code::NotFound);
    }
}

/// The answers to one call: each with the states that have it.
struct Row {
    call: &'static str,
    answers: Vec<(Answer, Vec<&'static str>)>,
}

impl Row {
    const fn new(call: &'static str) -> Self {
        Self {
            call,
            answers: Vec::new(),
        }
    }

    fn add(&mut self, state: &'static str, answer: Answer) {
        match self.answers.iter_mut().find(|(known, _)| *known == answer) {
            Some((_, states)) => states.push(state),
            None => self.answers.push((answer, vec![state])),
        }
    }

    fn write(&self, page: &mut String) {
        for (answer, states) in &self.answers {
            let states = match self.answers.len() {
                1 => "every state".to_owned(),
                _ => states.join(", "),
            };
            let Self { call, .. } = self;
            let answer = answer.shown();
            writeln!(page, "| {call} | {states} | {answer} |").unwrap();
        }
    }
}

/// A section of the page.
fn section(title: &str, states: &[(&str, &str)], rows: &[Row]) -> String {
    let mut text = format!("\n## {title}\n\n| state | meaning |\n| --- | --- |\n");
    for (state, meaning) in states {
        writeln!(text, "| {state} | {meaning} |").unwrap();
    }
    text.push_str("\n| call | state | answer |\n| --- | --- | --- |\n");
    for row in rows {
        row.write(&mut text);
    }
    text
}

#[tokio::test]
async fn every_call_has_its_answer_in_every_state() {
    let tables = async {
        let bench = Bench::new().await;
        let sandboxes = sandboxes::table(&bench).await;
        let containers = containers::table(&bench).await;
        format!("{BEGINNING}{sandboxes}{containers}")
    };
    let page = tokio::time::timeout(2 * TIMEOUT, Box::pin(tables)).await;
    let page = page.expect("no call hangs");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == page,
        "{PAGE} has other answers: look at them, then run this test with UPDATE_DOCS=1\n{page}"
    );
}

/// Methods whose request has the ID of a sandbox or a container.
fn methods_with_an_id() -> BTreeSet<&'static str> {
    let columns = |line: &'static str| line.split('\t').collect::<Vec<_>>();
    let lines: Vec<_> = FACTS.lines().map(columns).collect();
    let has_id = |request: &str| {
        let mut fields = lines.iter().filter(|line| line[0] == "field");
        fields
            .any(|line| line[1] == request && ["pod_sandbox_id", "container_id"].contains(&line[2]))
    };
    let methods = lines.iter().filter(|line| line[0] == "rpc");
    let methods = methods.filter(|line| has_id(line[3]));
    methods.map(|line| line[2]).collect()
}

#[test]
fn every_method_with_an_id_is_a_call_of_the_tables() {
    let sandboxes = sandboxes::Call::iter().map(sandboxes::Call::method);
    let containers = containers::Call::iter().map(containers::Call::method);
    let mut called: BTreeSet<_> = sandboxes.chain(containers).collect();
    assert!(called.remove("RunPodSandbox"), "it has a pod and no ID");
    // It is refused in every state.
    called.insert("CheckpointContainer");
    assert_eq!(called, methods_with_an_id());
}
