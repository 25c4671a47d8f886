//! The real agent between a real API server and a daemon that this test plays.
//!
//! Invariant: the agent has the rights of `deploy/agent` and no others, its token is bound to one
//! Node.
//! Failure: the agent's log is shown.

use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use crds::{TaskKind, TaskState, VirtualMachineTask, VirtualMachineTaskSpec};
use e2e::{Agent, Control, Manner, NodeServer, eventually, in_time};
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{
    Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use nodeapi::v1::Pull;
use nodeapi::v1::task_status::State;
use serde_json::json;
use tokio_stream::StreamExt;

/// After an outage both sides of the agent look again within half a minute.
const SOON: Duration = Duration::from_secs(120);
const NODE: &str = "n1";
/// Of the machine of the tasks.
const UID: &str = "0f0f0f0f-0000-4000-8000-000000000001";

/// API server, agent and daemon.
struct TestEnvironment {
    control: Control,
    agent: Agent,
    daemon: NodeServer,
    tasks: Api<VirtualMachineTask>,
    _scratch: tempfile::TempDir,
}

impl TestEnvironment {
    /// All three, the agent not started.
    async fn up() -> Result<Self> {
        let control = Control::up().await?;
        let scratch = tempfile::tempdir()?;
        let (agent, daemon) = Agent::beside_daemon(&control, scratch.path(), NODE).await?;
        let tasks = Api::namespaced(control.client()?, "default");
        Ok(Self {
            control,
            agent,
            daemon,
            tasks,
            _scratch: scratch,
        })
    }

    fn down(mut self) -> Result<()> {
        self.agent.kill()?;
        self.control.down()
    }

    async fn create(&self, name: &str, kind: TaskKind) -> Result<VirtualMachineTask> {
        self.create_on(NODE, name, kind).await
    }

    async fn create_on(
        &self,
        node: &str,
        name: &str,
        kind: TaskKind,
    ) -> Result<VirtualMachineTask> {
        let task = VirtualMachineTask::new(
            name,
            VirtualMachineTaskSpec {
                image: (kind == TaskKind::Provision).then(|| "vmlet.dev/hello".to_owned()),
                linked: kind == TaskKind::Provision,
                ..VirtualMachineTaskSpec::new(node, kind, "vm", UID)
            },
        );
        let created = self.tasks.create(&PostParams::default(), &task).await?;
        Ok(created)
    }

    async fn cancel(&self, name: &str) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": { "cancel": true } }));
        let params = PatchParams::default();
        self.tasks.patch(name, &params, &patch).await?;
        Ok(())
    }

    /// Waits until a task is in a state; gives the task.
    async fn await_state(&self, name: &str, state: TaskState) -> Result<VirtualMachineTask> {
        eventually(SOON, &format!("{name} {state:?}"), || async {
            let task = self.tasks.get(name).await?;
            let status = task.status.clone().unwrap_or_default();
            ensure!(status.state == Some(state), "{status:?}");
            Ok(task)
        })
        .await
    }

    /// Waits until a task was in a state, even if it is gone by now; gives the task as it was then.
    async fn await_record(
        &self,
        since: &VirtualMachineTask,
        state: TaskState,
    ) -> Result<VirtualMachineTask> {
        let what = format!("a record of {state:?}");
        self.await_event(since, &what, |event| match event {
            WatchEvent::Added(task) | WatchEvent::Modified(task) => {
                let status = task.status.as_ref();
                status.is_some_and(|status| status.state == Some(state))
            }
            _ => false,
        })
        .await
    }

    /// Waits until a task has been deleted.
    async fn await_deletion(&self, since: &VirtualMachineTask) -> Result<()> {
        let is_deletion = |event: &_| matches!(event, WatchEvent::Deleted(_));
        let gone = self.await_event(since, "the object goes", is_deletion);
        gone.await.map(drop)
    }

    /// Waits for an event of a task; none since that version is missed, however late this begins.
    async fn await_event(
        &self,
        since: &VirtualMachineTask,
        what: &str,
        is_wanted: impl Fn(&WatchEvent<VirtualMachineTask>) -> bool,
    ) -> Result<VirtualMachineTask> {
        let only = format!("metadata.name={}", since.name_any());
        let params = WatchParams::default().fields(&only);
        let version = since.resource_version().context("a version")?;
        let found = async {
            let mut events = pin!(self.tasks.watch(&params, &version).await?);
            while let Some(event) = events.try_next().await? {
                if let WatchEvent::Error(error) = &event {
                    bail!("{error:?}");
                }
                if is_wanted(&event)
                    && let WatchEvent::Added(task)
                    | WatchEvent::Modified(task)
                    | WatchEvent::Deleted(task) = event
                {
                    return Ok(task);
                }
            }
            bail!("the watch ended")
        };
        in_time(SOON, what, found).await
    }

    /// Notes of the events about pulls.
    async fn pull_events(&self) -> Result<Vec<String>> {
        let events: Api<Event> = Api::namespaced(self.control.client()?, "default");
        let found = events.list(&ListParams::default()).await?.items.into_iter();
        let of_pulls = found.filter(|event| event.reason.as_deref() == Some("Pulling"));
        Ok(of_pulls.filter_map(|event| event.note).collect())
    }

    async fn await_pull_event(&self, words: &str) -> Result<()> {
        eventually(SOON, "the progress of a pull", || async {
            let notes = self.pull_events().await?;
            ensure!(notes.iter().any(|note| note.contains(words)), "{notes:?}");
            Ok(())
        })
        .await
    }

    async fn await_forgotten(&self, uid: &str) -> Result<()> {
        eventually(SOON, "the daemon forgets", || async {
            let task = self.daemon.task(uid);
            ensure!(task.is_none(), "{task:?}");
            Ok(())
        })
        .await
    }

    async fn await_daemon(&self, uid: &str, state: State) -> Result<()> {
        eventually(SOON, "the daemon's task", || async {
            let task = self.daemon.task(uid).context("not sent")?;
            ensure!(task.state() == state, "{task:?}");
            Ok(())
        })
        .await
    }
}

/// A pull of an image of 100 MiB by a pod.
fn pull(id: &str, percent: u64) -> Pull {
    Pull {
        id: id.to_owned(),
        pod_namespace: "default".to_owned(),
        pod_name: "web".to_owned(),
        pod_uid: "0f0f0f0f-0000-4000-8000-000000000002".to_owned(),
        image: "h.org/a:1".to_owned(),
        received_bytes: percent << 20,
        total_bytes: 100 << 20,
    }
}

fn uid(task: &VirtualMachineTask) -> String {
    task.uid().unwrap_or_default()
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_task_is_run_recorded_forgotten_and_deleted() -> Result<()> {
    let mut env = TestEnvironment::up().await?;
    env.agent.limit("completed_tasks", "1s")?;
    let early = env.create("early", TaskKind::Provision).await?;
    let other = env.create_on("n2", "other", TaskKind::Reset).await?;
    env.agent.start()?;

    // The agent deletes it soon, which the history of the API server survives.
    let done = env.await_record(&early, TaskState::Success).await?;
    let status = done.status.clone().unwrap_or_default();
    ensure!(status.completion_time.is_some(), "{status:?}");
    env.await_forgotten(&uid(&early)).await?;
    env.await_deletion(&done).await?;

    // What this daemon or this agent cannot do.
    for (name, kind) in [
        ("keep", TaskKind::Snapshot),
        ("stop", TaskKind::GuestShutdown),
    ] {
        env.create(name, kind).await?;
        let refused = env.await_state(name, TaskState::Error).await?;
        let status = refused.status.unwrap_or_default();
        ensure!(!status.transient, "{status:?}");
        ensure!(status.message.contains(&format!("{kind:?}")), "{status:?}");
    }
    env.daemon.set_manner(Manner::Refuse);
    env.create("odd", TaskKind::Provision).await?;
    let refused = env.await_state("odd", TaskState::Error).await?;
    let status = refused.status.unwrap_or_default();
    ensure!(status.message.contains("no such image name"), "{status:?}");

    ensure!(
        env.daemon.began(&uid(&other)) == 0,
        "a task of another node"
    );
    ensure!(env.tasks.get("other").await?.status.is_none());
    env.down()
}

#[tokio::test]
#[ignore = "needs root"]
async fn progress_is_shown_and_a_cancel_or_a_deletion_reaches_the_daemon() -> Result<()> {
    let mut env = TestEnvironment::up().await?;
    env.daemon.set_manner(Manner::Hold);
    env.agent.start()?;
    let first = env.create("first", TaskKind::Provision).await?;
    env.await_state("first", TaskState::Running).await?;
    env.daemon.set_task(&uid(&first), State::Running, 3, "")?;
    env.daemon.set_task(&uid(&first), State::Running, 40, "")?;
    eventually(SOON, "progress", || async {
        let status = env.tasks.get("first").await?.status.unwrap_or_default();
        ensure!(status.progress_percent == 40, "{status:?}");
        Ok(())
    })
    .await?;
    env.daemon.set_pull(&pull("1", 40));
    env.await_pull_event("40 %").await?;
    env.cancel("first").await?;
    env.await_state("first", TaskState::Cancelled).await?;
    env.await_forgotten(&uid(&first)).await?;

    let second = env.create("second", TaskKind::Reset).await?;
    env.await_daemon(&uid(&second), State::Running).await?;
    env.tasks.delete("second", &DeleteParams::default()).await?;
    env.await_forgotten(&uid(&second)).await?;

    // While the daemon is away nothing is lost, and what was cancelled meanwhile never begins.
    env.daemon.stop()?;
    let third = env.create("third", TaskKind::Reset).await?;
    env.daemon.set_manner(Manner::Succeed);
    env.daemon.start()?;
    env.await_state("third", TaskState::Success).await?;
    // kubelet repeats the pull, which continues where it ended: what was reported is not repeated.
    env.daemon.set_pull(&pull("2", 45));
    env.daemon.set_pull(&pull("2", 50));
    env.await_pull_event("50 %").await?;
    let notes = env.pull_events().await?;
    ensure!(notes.len() == 2, "{notes:?}");
    env.daemon.stop()?;
    let fourth = env.create("fourth", TaskKind::Reset).await?;
    env.cancel("fourth").await?;
    // One that ran all the time might receive the cancellation only after it had connected to the
    // daemon.
    env.agent.kill()?;
    env.agent.start()?;
    env.daemon.start()?;
    env.await_state("fourth", TaskState::Cancelled).await?;
    ensure!(env.daemon.began(&uid(&third)) == 1);
    ensure!(env.daemon.began(&uid(&fourth)) == 0);
    env.down()
}

#[tokio::test]
#[ignore = "needs root"]
async fn results_wait_for_an_api_server_that_is_away() -> Result<()> {
    let mut env = TestEnvironment::up().await?;
    env.daemon.set_manner(Manner::Hold);
    env.agent.start()?;
    let task = env.create("task", TaskKind::Save).await?;
    env.await_state("task", TaskState::Running).await?;
    env.control.stop_api().await?;
    env.daemon.set_task(&uid(&task), State::Success, 100, "")?;
    // The agent does not let the daemon forget what it has tried to record without success.
    let failures = || {
        let log = env.agent.log();
        let lines = log.lines().filter(|line| line.contains(&uid(&task)));
        lines
            .filter(|line| line.contains("task status not written"))
            .count()
    };
    let before = failures();
    eventually(SOON, "a record that fails", || async {
        ensure!(failures() > before, "{}", env.agent.log());
        Ok(())
    })
    .await?;
    let known = env.daemon.task(&uid(&task));
    ensure!(known.is_some(), "forgotten while the API server was away");
    env.agent.kill()?;
    env.agent.start()?;
    env.control.start_api()?;
    env.await_state("task", TaskState::Success).await?;
    env.await_forgotten(&uid(&task)).await?;
    ensure!(env.daemon.began(&uid(&task)) == 1);
    env.down()
}

#[tokio::test]
#[ignore = "needs root"]
async fn an_agent_that_is_killed_at_any_step_ends_each_task_once() -> Result<()> {
    let mut env = TestEnvironment::up().await?;
    env.agent.limit("completed_tasks", "2s")?;
    for point in [
        "agent.task.run",
        "agent.task.ran",
        "agent.task.progress",
        "agent.task.record",
        "agent.task.recorded",
        "agent.task.forget",
        "agent.task.forgot",
        "agent.task.delete",
        "agent.task.cancel",
    ] {
        env.one_crash(point)
            .await
            .with_context(|| point.to_owned())?;
    }
    env.down()
}

impl TestEnvironment {
    /// The life of a task, with the agent killed at `point`.
    async fn one_crash(&mut self, point: &str) -> Result<()> {
        let name = point.replace('.', "-");
        let cancels = point == "agent.task.cancel";
        let holds = cancels || point == "agent.task.progress";
        self.daemon
            .set_manner(if holds { Manner::Hold } else { Manner::Succeed });
        self.agent.arm(point)?;
        self.agent.start()?;
        let task = self.create(&name, TaskKind::Provision).await?;
        let uid = uid(&task);
        if cancels {
            self.await_daemon(&uid, State::Running).await?;
            self.cancel(&name).await?;
        }
        self.agent.await_death(SOON).await?;
        if holds && !cancels {
            self.await_daemon(&uid, State::Running).await?;
            self.daemon.set_task(&uid, State::Success, 100, "")?;
        }
        self.agent.start()?;
        let end = if cancels { "Cancelled" } else { "Success" };
        eventually(SOON, "the end of the task", || async {
            match self.tasks.get_opt(&name).await? {
                // Deleted already: it had ended well, or it would be there still.
                None => Ok(()),
                Some(task) => {
                    let status = task.status.unwrap_or_default();
                    ensure!(
                        format!("{:?}", status.state) == format!("Some({end})"),
                        "{status:?}"
                    );
                    Ok(())
                }
            }
        })
        .await?;
        self.await_forgotten(&uid).await?;
        eventually(SOON, "the object goes", || async {
            ensure!(self.tasks.get_opt(&name).await?.is_none(), "it is there");
            Ok(())
        })
        .await?;
        let began = self.daemon.began(&uid);
        if began != 1 {
            bail!("it began {began} times");
        }
        self.agent.kill()
    }
}
