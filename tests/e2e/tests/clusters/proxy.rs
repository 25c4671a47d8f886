//! A runtime fails in several ways while kubelet lists its pods.
//!
//! Invariant: ordinary pods never restart, VM pods stay known and run on, and only a broken primary
//! makes the node NotReady. Every fault lasts for several of kubelet's lists.
//! Failure: the fault is named; pods, events and logs follow.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::conversation::{Answer, Line, Question, Server};
use e2e::{Cluster, container_pod, eventually, program, ticks, vm_pod};
use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

const READY: Duration = Duration::from_secs(300);
const GONE: Duration = Duration::from_secs(180);
/// Kubelet's lists during a fault.
const LISTS: u64 = 6;
/// How long an answer of the slow runtime takes: less than the proxy waits for one.
const SLOW: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn a_broken_runtime_disturbs_no_pod() -> Result<()> {
    let cluster = Cluster::up()?;
    doubt_for_long(&cluster)?;
    make_kubelet_impatient(&cluster)?;
    let script = "trap 'exit 0' TERM; echo hello; sleep 10000 & wait";
    cluster.apply(&container_pod("box", script))?;
    cluster.apply(&vm_pod("machine"))?;
    for pod in ["pod/box", "pod/machine"] {
        cluster.await_ready(pod, READY)?;
    }
    check(&cluster, "")?;
    let node = Node {
        pods: identities(&cluster)?,
        ready_since: ready(&cluster)?,
        cluster: &cluster,
    };
    node.secondary_is_killed().await.context("killed")?;
    node.secondary_hangs().await.context("hung")?;
    node.secondary_is_slow().await.context("slow")?;
    node.secondary_speaks_no_http().await.context("no HTTP")?;
    node.secondary_speaks_no_protobuf()
        .await
        .context("no protobuf")?;
    node.secondary_comes_back_empty().await.context("empty")?;
    node.primary_is_killed_and_garbled()
        .await
        .context("primary killed")?;
    node.primary_hangs().await.context("primary hung")?;
    node.never_booted_again().await?;
    for pod in ["pod/box", "pod/machine"] {
        cluster.delete(pod, GONE)?;
    }
    cluster.await_clean().await?;
    cluster.down()
}

struct Node<'a> {
    cluster: &'a Cluster,
    pods: Vec<Value>,
    ready_since: String,
}

impl Node<'_> {
    async fn secondary_is_killed(&self) -> Result<()> {
        self.stop_vmlet().await?;
        check(self.cluster, "does not answer")?;
        self.ordinary_life_goes_on().await?;
        self.heal().await
    }

    async fn secondary_hangs(&self) -> Result<()> {
        let vmlet = self.cluster.stack().pid("vmlet")?;
        kill(vmlet, Signal::SIGSTOP)?;
        let life = self.ordinary_life_goes_on().await;
        kill(vmlet, Signal::SIGCONT)?;
        life?;
        self.unharmed().await
    }

    async fn secondary_is_slow(&self) -> Result<()> {
        self.stop_vmlet().await?;
        let file = self.dir().join("vmlet.toml");
        let behind = self.dir().join("run/behind");
        let settings = std::fs::read_to_string(&file)?;
        let socket = self.vmlet_socket();
        let moved = settings.replacen(path(&socket), path(&behind), 1);
        ensure!(moved != settings, "{settings}");
        std::fs::write(&file, moved)?;
        let line = Arc::new(tokio::sync::OnceCell::new());
        let slow = Server::start(&socket, move |question: Question| {
            let line = Arc::clone(&line);
            let behind = behind.clone();
            async move {
                tokio::time::sleep(SLOW).await;
                let answer = async {
                    let line = line.get_or_try_init(|| Line::connect(&behind)).await?;
                    line.call(&question).await
                };
                let answer: Result<Answer> = answer.await;
                answer.unwrap_or_else(|error| Answer::status("14", &format!("{error:#}")))
            }
        })?;
        self.cluster.stack().restart("vmlet")?;
        self.ordinary_life_goes_on().await?;
        drop(slow);
        std::fs::write(&file, settings)?;
        self.heal().await
    }

    async fn secondary_speaks_no_http(&self) -> Result<()> {
        self.stop_vmlet().await?;
        let noise = noise(&self.vmlet_socket())?;
        self.ordinary_life_goes_on().await?;
        noise.abort();
        self.heal().await
    }

    async fn secondary_speaks_no_protobuf(&self) -> Result<()> {
        self.stop_vmlet().await?;
        let server = Server::start(&self.vmlet_socket(), |_| async {
            let mut answer = Answer::empty();
            // Field 1 with more bytes than there are.
            answer.data = vec![0, 0, 0, 0, 3, 0x0a, 0x7f, 0xff].into();
            answer
        })?;
        self.ordinary_life_goes_on().await?;
        drop(server);
        self.heal().await
    }

    /// A daemon that has lost its state, and cannot reach anything that knows its pods.
    async fn secondary_comes_back_empty(&self) -> Result<()> {
        self.stop_vmlet().await?;
        let file = self.dir().join("vmlet.toml");
        let settings = std::fs::read_to_string(&file)?;
        let state = path(self.dir()).to_owned() + "/state\"";
        let mut lost = settings.replacen(&state, &format!("{}/lost\"", path(self.dir())), 1);
        for socket in ["libvirt-sock", "tapmanager.sock", "handoff.sock"] {
            ensure!(lost.contains(socket), "{settings}");
            lost = lost.replacen(socket, &format!("no-{socket}"), 1);
        }
        ensure!(!lost.contains(&state), "{settings}");
        std::fs::write(&file, lost)?;
        self.cluster.stack().restart("vmlet")?;
        // Its answers are doubted for a while, long enough for a restart that is not this one.
        self.lists(LISTS).await?;
        self.machine_runs_on().await?;
        self.same()?;
        self.stop_vmlet().await?;
        std::fs::write(&file, settings)?;
        std::fs::remove_dir_all(self.dir().join("lost"))?;
        self.heal().await
    }

    /// First it is away, then something else answers in its place.
    async fn primary_is_killed_and_garbled(&self) -> Result<()> {
        let stack = self.cluster.stack();
        let socket = self.dir().join("run/containerd.sock");
        let target = std::fs::read_link(&socket)?;
        stack.kill("containerd", Signal::SIGKILL).await?;
        check(self.cluster, "does not answer")?;
        self.becomes_not_ready()?;
        let noise = noise(&socket)?;
        self.lists(LISTS).await?;
        self.becomes_not_ready()?;
        self.machine_runs_on().await?;
        noise.abort();
        std::fs::remove_file(&socket)?;
        std::os::unix::fs::symlink(target, &socket)?;
        stack.restart("containerd")?;
        self.becomes_ready().await
    }

    async fn primary_hangs(&self) -> Result<()> {
        let containerd = self.cluster.stack().pid("containerd")?;
        kill(containerd, Signal::SIGSTOP)?;
        let not_ready = self.becomes_not_ready();
        let machine = self.machine_runs_on().await;
        kill(containerd, Signal::SIGCONT)?;
        not_ready?;
        machine?;
        self.becomes_ready().await
    }
}

/// What the faults are made of.
impl Node<'_> {
    fn dir(&self) -> &Path {
        self.cluster.stack().dir()
    }

    fn vmlet_socket(&self) -> PathBuf {
        self.dir().join("run/vmlet.sock")
    }

    async fn stop_vmlet(&self) -> Result<()> {
        self.cluster.stack().kill("vmlet", Signal::SIGKILL).await
    }

    /// The daemon as it was.
    async fn heal(&self) -> Result<()> {
        self.cluster.stack().restart("vmlet")?;
        self.unharmed().await
    }

    /// While the daemon is broken: the pods are there, and ordinary ones can do everything.
    async fn ordinary_life_goes_on(&self) -> Result<()> {
        let before = relists(self.cluster)?;
        let echo = self
            .cluster
            .kubectl(&["exec", "box", "--", "echo", "well"])?;
        ensure!(echo == "well", "exec: {echo:?}");
        let log = self.cluster.kubectl(&["logs", "box"])?;
        ensure!(log == "hello", "logs: {log:?}");
        self.cluster.apply(&container_pod("new", "sleep 1000"))?;
        self.cluster.await_ready("pod/new", READY)?;
        self.cluster.delete("pod/new", GONE)?;
        self.lists_since(before, LISTS).await?;
        self.machine_runs_on().await?;
        self.same()
    }

    /// After the fault.
    async fn unharmed(&self) -> Result<()> {
        self.everybody_is_well().await?;
        self.lists(LISTS).await?;
        self.machine_runs_on().await?;
        self.same()?;
        let since = ready(self.cluster)?;
        ensure!(
            since == self.ready_since,
            "the node was not ready: it is since {since}"
        );
        let domains = self.cluster.stack().domains()?;
        ensure!(domains.len() == 1, "{domains:?}");
        Ok(())
    }

    async fn everybody_is_well(&self) -> Result<()> {
        eventually(READY, "the proxy finds everybody well", || async {
            check(self.cluster, "")
        })
        .await
    }

    fn same(&self) -> Result<()> {
        let pods = identities(self.cluster)?;
        ensure!(pods == self.pods, "{:#?} became {pods:#?}", self.pods);
        let events = self.cluster.get_json(&["events"])?;
        for event in events["items"].as_array().context("events")? {
            let name = event["involvedObject"]["name"].as_str();
            let reason = event["reason"].as_str();
            let is_bad = ["Killing", "SandboxChanged", "BackOff"]
                .map(Some)
                .contains(&reason);
            ensure!(!is_bad || name == Some("new"), "{event:#}");
        }
        Ok(())
    }

    async fn becomes_ready(&self) -> Result<()> {
        self.cluster
            .await_condition("node/node1", "condition=Ready", READY)?;
        for pod in ["pod/box", "pod/machine"] {
            self.cluster.await_ready(pod, READY)?;
        }
        self.everybody_is_well().await?;
        self.lists(LISTS).await?;
        self.same()
    }

    fn becomes_not_ready(&self) -> Result<()> {
        self.cluster
            .await_condition("node/node1", "condition=Ready=False", READY)
    }

    /// The guest responds, whichever client reads its console.
    async fn machine_runs_on(&self) -> Result<()> {
        let url = format!("http://{}/", self.cluster.pod_ip("machine")?);
        let page = self.cluster.stack().fetch(&url, READY).await?;
        ensure!(page.contains("machine"), "{page:?}");
        Ok(())
    }

    /// The guest's own clock has never gone back.
    async fn never_booted_again(&self) -> Result<()> {
        let (reported, last) = eventually(READY, "a first tick", || async {
            let reported = ticks(&self.cluster.kubectl(&["logs", "machine", "--tail=-1"])?);
            let last = *reported.last().context("the guest has not said a thing")?;
            Ok((reported, last))
        })
        .await?;
        for pair in reported.windows(2) {
            ensure!(pair[0].uptime < pair[1].uptime, "{pair:?}");
        }
        eventually(READY, "the guest's next tick", || async {
            let now = ticks(&self.cluster.kubectl(&["logs", "machine", "--tail=40"])?);
            let now = now.last().context("no tick")?;
            ensure!(now.uptime > last.uptime, "{last:?}, then {now:?}");
            Ok(())
        })
        .await
    }

    async fn lists(&self, count: u64) -> Result<()> {
        self.lists_since(relists(self.cluster)?, count).await
    }

    async fn lists_since(&self, before: u64, count: u64) -> Result<()> {
        eventually(READY, "kubelet's lists", || async {
            let now = relists(self.cluster)?;
            ensure!(now >= before + count, "{before}, then {now}");
            Ok(())
        })
        .await
    }
}

/// A runtime that has forgotten everything is not believed for half a minute by default: a slow
/// machine has not even listed its pods a few times by then.
fn doubt_for_long(cluster: &Cluster) -> Result<()> {
    let file = cluster.stack().dir().join("criproxy.toml");
    let settings = std::fs::read_to_string(&file)?;
    ensure!(!settings.contains("[limits]"), "{settings}");
    std::fs::write(&file, settings + "\n[limits]\nempty_grace = \"10m\"\n")?;
    cluster.stack().restart("vmlet-criproxy")
}

/// A primary that hangs is noticed when kubelet's own call to it has taken too long, which is two
/// minutes by default.
fn make_kubelet_impatient(cluster: &Cluster) -> Result<()> {
    cluster.configure_kubelet(|settings| settings["runtimeRequestTimeout"] = json!("20s"))?;
    cluster.await_condition("node/node1", "condition=Ready", READY)
}

/// What `vmlet-criproxy check` says; it must contain `complaint`, or be content when that is empty.
fn check(cluster: &Cluster, complaint: &str) -> Result<()> {
    let dir = cluster.stack().dir();
    let mut check = cluster
        .stack()
        .command(path(&dir.join("bin/vmlet-criproxy")));
    check
        .arg("check")
        .arg("--config")
        .arg(dir.join("criproxy.toml"));
    let output = program::output(&mut check)?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success() == complaint.is_empty() && text.contains(complaint),
        "{}: {text}",
        output.status
    );
    for part in ["containerd v", "RuntimeClass handler vmlet", "remembered"] {
        ensure!(
            !complaint.is_empty() || text.contains(part),
            "no {part}: {text}"
        );
    }
    Ok(())
}

/// Bytes without meaning, for each client that connects.
fn noise(socket: &Path) -> Result<JoinHandle<()>> {
    if socket.symlink_metadata().is_ok() {
        std::fs::remove_file(socket)?;
    }
    let listener = UnixListener::bind(socket)?;
    Ok(tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(&[0x9e; 4096]).await;
        }
    }))
}

/// How often kubelet has listed the pods of its runtime.
fn relists(cluster: &Cluster) -> Result<u64> {
    let metrics = cluster.kubectl(&["get", "--raw", "/api/v1/nodes/node1/proxy/metrics"])?;
    let count = metrics
        .lines()
        .find_map(|line| line.strip_prefix("kubelet_pleg_relist_duration_seconds_count "));
    Ok(count.context("kubelet counts no lists")?.parse()?)
}

/// Since when the node is Ready; an error when it is not.
fn ready(cluster: &Cluster) -> Result<String> {
    let node = cluster.get_json(&["node", "node1"])?;
    let conditions = node["status"]["conditions"].as_array();
    let mut conditions = conditions.context("conditions")?.iter();
    let ready = conditions.find(|condition| condition["type"] == "Ready");
    let ready = ready.context("Ready")?;
    ensure!(ready["status"] == "True", "{ready}");
    Ok(ready["lastTransitionTime"].to_string())
}

/// Who the pods are: another container, start or count of restarts is another life.
fn identities(cluster: &Cluster) -> Result<Vec<Value>> {
    let list = cluster.get_json(&["pods"])?;
    let pods = list["items"].as_array().context("items")?;
    let identity = |pod: &Value| {
        let status = &pod["status"]["containerStatuses"][0];
        json!({
            "uid": pod["metadata"]["uid"],
            "ip": pod["status"]["podIP"],
            "phase": pod["status"]["phase"],
            "container": status["containerID"],
            "state": status["state"],
            "restarts": status["restartCount"],
        })
    };
    Ok(pods.iter().map(identity).collect())
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}
