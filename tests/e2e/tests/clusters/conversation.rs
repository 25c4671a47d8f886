//! The messages between kubelet and containerd are the same bytes with the proxy in between.
//!
//! Invariant: whole lives of real pods are overheard between a real kubelet and containerd. Said
//! again to an actor that answers as containerd did, directly and through the proxy, every question
//! arrives and every answer returns as it was; queried again of containerd itself, both ways
//! lead to the same.
//! Failure: the call is named, both versions are shown.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::conversation::{Answer, Exchange, Line, Question, Server, Tap};
use e2e::{Cluster, Options, container_pod, eventually};
use serde_json::json;

const READY: Duration = Duration::from_secs(600);
const GONE: Duration = Duration::from_secs(300);

/// What kubelet must have said, for the conversation to be worth something.
const EXPECTED: [&str; 20] = [
    "ContainerStatus",
    "CreateContainer",
    "Exec",
    "ExecSync",
    "ImageFsInfo",
    "ImageStatus",
    "ListContainerStats",
    "ListContainers",
    "ListImages",
    "ListPodSandbox",
    "PodSandboxStatus",
    "PullImage",
    "RemoveContainer",
    "RunPodSandbox",
    "RuntimeConfig",
    "StartContainer",
    "Status",
    "StopContainer",
    "StopPodSandbox",
    "Version",
];

/// Questions that change nothing and whose answers hold still. Not here: `ListContainerStats`,
/// `ImageFsInfo` (times and figures), `Exec` (a token), and `Status`, to which the proxy adds the
/// other runtime's conditions.
const STEADY: [&str; 9] = [
    "ContainerStatus",
    "ExecSync",
    "ImageStatus",
    "ListContainers",
    "ListImages",
    "ListPodSandbox",
    "PodSandboxStatus",
    "RuntimeConfig",
    "Version",
];

/// Questions that may be for several runtimes. Kubelet offers compression, which the proxy does not
/// pass on with these: it joins the answers as bytes.
const FOR_ALL: [&str; 8] = [
    "ImageFsInfo",
    "ImageStatus",
    "ListContainerStats",
    "ListContainers",
    "ListImages",
    "ListPodSandbox",
    "Status",
    "Version",
];
const COMPRESSION: &str = "grpc-accept-encoding";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn the_proxy_passes_the_same_bytes_between_kubelet_and_containerd() -> Result<()> {
    let cluster = Cluster::with(Options {
        no_vmlet: true,
        ..Options::default()
    })?;
    let reported = overhear(&cluster).await?;
    for other_runtime in [false, true] {
        replay(&cluster, &reported, other_runtime)
            .await
            .with_context(|| format!("with another runtime: {other_runtime}"))?;
    }
    compare_with_containerd(&cluster, &reported).await?;
    cluster.delete("pod/stays", GONE)?;
    cluster.await_clean().await?;
    cluster.down()
}

/// Lives of pods, with kubelet talking to containerd itself.
async fn overhear(cluster: &Cluster) -> Result<Vec<Exchange>> {
    let stack = cluster.stack();
    let run = stack.dir().join("run");
    let config = stack.dir().join("kubelet.json");
    let tap = Tap::start(&run.join("tap.sock"), &run.join("containerd.sock")).await?;
    let settings = std::fs::read_to_string(&config)?;
    let tapped = settings.replace("/criproxy.sock", "/tap.sock");
    ensure!(tapped != settings, "no endpoint in {settings}");
    std::fs::write(&config, tapped)?;
    stack.restart("kubelet")?;

    let mut pod = container_pod("stays", "trap 'exit 0' TERM; echo hello; sleep 1000 & wait");
    pod["spec"]["containers"][0]["readinessProbe"] =
        json!({ "exec": { "command": ["echo", "well"] }, "periodSeconds": 1 });
    cluster.apply(&pod)?;
    pod["metadata"]["name"] = json!("goes");
    cluster.apply(&pod)?;
    pod["metadata"]["name"] = json!("never");
    let container = &mut pod["spec"]["containers"][0];
    container["image"] = json!("127.0.0.1:1/nothing:1");
    container["imagePullPolicy"] = json!("IfNotPresent");
    cluster.apply(&pod)?;
    for pod in ["pod/stays", "pod/goes"] {
        cluster.await_ready(pod, READY)?;
    }
    let echo = cluster.kubectl(&["exec", "stays", "--", "echo", "by exec"])?;
    ensure!(echo == "by exec", "{echo:?}");
    eventually(READY, "the refused pull", || async {
        let pulls = tap.exchanges();
        let pulls = pulls.iter().filter(|e| e.question.method() == "PullImage");
        ensure!(pulls.count() > 0);
        Ok(())
    })
    .await?;
    for pod in ["pod/goes", "pod/never"] {
        cluster.delete(pod, GONE)?;
    }
    eventually(READY, "every kind of call", || async {
        let exchanges = tap.exchanges();
        let methods: BTreeSet<_> = exchanges.iter().map(|e| e.question.method()).collect();
        let missing: Vec<_> = (EXPECTED.iter())
            .filter(|method| !methods.contains(*method))
            .collect();
        ensure!(missing.is_empty(), "kubelet never said {missing:?}");
        Ok(())
    })
    .await?;
    std::fs::write(&config, settings)?;
    stack.restart("kubelet")?;
    Ok(tap.exchanges())
}

/// The whole conversation, call by call, directly and through a proxy.
async fn replay(cluster: &Cluster, reported: &[Exchange], other_runtime: bool) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let actor = Actor::start(&scratch.path().join("actor.sock"), reported)?;
    let program = cluster.stack().dir().join("bin/vmlet-criproxy");
    let proxy = Proxy::start(&program, scratch.path(), other_runtime)?;
    let direct = Line::connect(&scratch.path().join("actor.sock")).await?;
    let proxied = eventually(READY, "the proxy", || Line::connect(&proxy.socket)).await?;
    let mut counts = BTreeMap::<&str, usize>::new();
    for (number, exchange) in reported.iter().enumerate() {
        let Exchange { question, answer } = exchange;
        let name = format!("call {number}, {}", question.method());
        actor.cue(number);
        let plain = direct.call(question).await.context(name.clone())?;
        ensure!(plain == *answer, "{name}: the actor says {plain:?}");
        let first = actor.questions();
        actor.cue(number);
        let through = proxied.call(question).await.context(name.clone())?;
        let second = actor.questions();
        ensure!(first == [question.clone()], "{name}: {first:?}");
        ensure!(
            second.iter().map(plainly).eq(first.iter().map(plainly)),
            "{name}: directly {first:?}, through the proxy {second:?}"
        );
        if other_runtime && question.method() == "Status" {
            // Its conditions come behind what containerd reports.
            ensure!(
                message(&through).starts_with(message(answer)),
                "{name}: {answer:?} became {through:?}"
            );
        } else {
            ensure!(through == *answer, "{name}: {answer:?} became {through:?}");
        }
        *counts.entry(question.method()).or_default() += 1;
    }
    eprintln!("{} calls the same: {counts:?}", reported.len());
    Ok(())
}

/// Every steady question once, of containerd itself, directly and through the node's own proxy.
async fn compare_with_containerd(cluster: &Cluster, reported: &[Exchange]) -> Result<()> {
    let run = cluster.stack().dir().join("run");
    let direct = Line::connect(&run.join("containerd.sock")).await?;
    let proxied = Line::connect(&run.join("criproxy.sock")).await?;
    let questions: BTreeMap<_, _> = (reported.iter())
        .map(|exchange| &exchange.question)
        .filter(|question| STEADY.contains(&question.method()))
        .map(|question| ((&question.uri, &question.data), question))
        .collect();
    ensure!(questions.len() > STEADY.len(), "{}", questions.len());
    for question in questions.into_values() {
        let mut question = question.clone();
        // Of a caller who had less time left.
        question.headers.remove("grpc-timeout");
        let what = format!("{} both ways", question.method());
        // Something may change between two calls.
        eventually(GONE, &what, || async {
            let plain = direct.call(&question).await?;
            let through = proxied.call(&question).await?;
            ensure!(
                steady(&plain) == steady(&through),
                "{plain:?} became {through:?}"
            );
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// An answer but for the order of its bytes: lists and maps of a Go program have none.
fn steady(answer: &Answer) -> Answer {
    let mut data = answer.data.to_vec();
    data.sort_unstable();
    Answer {
        data: data.into(),
        ..answer.clone()
    }
}

/// A question but for the compression that one for all offers.
fn plainly(question: &Question) -> Question {
    let mut question = question.clone();
    if FOR_ALL.contains(&question.method()) {
        question.headers.remove(COMPRESSION);
    }
    question
}

/// A message without its prefix.
fn message(answer: &Answer) -> &[u8] {
    answer.data.get(5..).unwrap_or_default()
}

/// Answers as containerd did.
struct Actor {
    play: Arc<Mutex<Play>>,
    _server: Server,
}

struct Play {
    script: Vec<Exchange>,
    cue: usize,
    questions: Vec<Question>,
}

impl Actor {
    fn start(socket: &Path, script: &[Exchange]) -> Result<Self> {
        let play = Arc::new(Mutex::new(Play {
            script: script.to_vec(),
            cue: 0,
            questions: Vec::new(),
        }));
        let stage = Arc::clone(&play);
        let server = Server::start(socket, move |question| {
            let answer = stage
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .answer(question);
            async move { answer }
        })?;
        Ok(Self {
            play,
            _server: server,
        })
    }

    /// What comes next.
    fn cue(&self, number: usize) {
        self.play.lock().unwrap_or_else(PoisonError::into_inner).cue = number;
    }

    /// What clients asked since the last time.
    fn questions(&self) -> Vec<Question> {
        std::mem::take(
            &mut self
                .play
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .questions,
        )
    }
}

impl Play {
    fn answer(&mut self, question: Question) -> Answer {
        let is_same = |other: &Exchange| {
            other.question.uri == question.uri && other.question.data == question.data
        };
        let next = &self.script[self.cue];
        let known = if is_same(next) {
            Some(next)
        } else {
            self.script.iter().find(|other| is_same(other))
        };
        let answer = known.map_or_else(Answer::empty, |known| known.answer.clone());
        // The proxy also asks by itself, when it meets a runtime; then it names no client.
        if question.headers.contains_key("user-agent") {
            self.questions.push(question);
        }
        answer
    }
}

/// A proxy of our own, before the actor.
struct Proxy {
    socket: PathBuf,
    child: Child,
}

impl Proxy {
    fn start(program: &Path, scratch: &Path, other_runtime: bool) -> Result<Self> {
        let socket = scratch.join("proxy.sock");
        let dir = scratch.display();
        let mut config = format!(
            "listen = \"{dir}/proxy.sock\"\nstatus_listen = \"\"\nstate_dir = \"{dir}/state\"\n\n\
             [primary]\nname = \"containerd\"\nsocket = \"{dir}/actor.sock\"\n"
        );
        if other_runtime {
            config += &format!(
                "\n[[secondary]]\nname = \"vmlet\"\nsocket = \"{dir}/absent.sock\"\n\
                 handlers = [\"vmlet\"]\nid_suffix = \"766d6c74\"\n"
            );
        }
        let file = scratch.join("criproxy.toml");
        std::fs::write(&file, config)?;
        let child = Command::new(program).arg("--config").arg(&file).spawn();
        let child = child.with_context(|| format!("start {}", program.display()))?;
        Ok(Self { socket, child })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
