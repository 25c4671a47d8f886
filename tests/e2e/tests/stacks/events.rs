//! Events of a real machine, by a gRPC client and by crictl.
//!
//! Invariant: a client that subscribes, then lists, knows everything: each step of the life is one
//! event, in order, with the pod as it was.
//! Failure: the events that came.

use std::fs::File;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::v1::ContainerEventType as Kind;
use e2e::{Cri, PodOptions, Stack, eventually, in_time, v1};
use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::process::Command;
use tonic::{Code, Status, Streaming};

const BOOT: Duration = Duration::from_secs(180);
const SOON: Duration = Duration::from_secs(60);

type Events = Streaming<v1::ContainerEventResponse>;

#[tokio::test]
#[ignore = "needs root"]
async fn each_step_of_a_life_is_one_event() -> Result<()> {
    let stack = Stack::up()?;
    let cri = stack.cri().await?;
    let image = cri.await_image(&stack).await?;
    let printed = stack.dir().join("events.json");
    let mut crictl = Command::from(stack.command("crictl"));
    let mut crictl = crictl
        .arg("events")
        .stdout(File::create(&printed)?)
        .stderr(Stdio::null())
        .spawn()?;
    // crictl prints nothing when it has subscribed: pods come and go until it prints one.
    let visitor = PodOptions::named("visitor", &stack);
    eventually(SOON, "the first event that crictl prints", || async {
        let id = cri.run(visitor.sandbox()).await?;
        cri.remove_pod(&id).await?;
        ensure!(printed.metadata()?.len() > 0);
        Ok(())
    })
    .await?;

    let mut events = subscribe(&cri).await?;
    let pod = PodOptions::named("life", &stack);
    let (sandbox, container) = cri.boot(&pod, &image).await?;
    let began = [
        (Kind::ContainerCreatedEvent, &sandbox, 0),
        (Kind::ContainerStartedEvent, &sandbox, 0),
        (Kind::ContainerCreatedEvent, &container, 1),
        (Kind::ContainerStartedEvent, &container, 1),
    ];
    for (kind, id, containers) in began {
        let event = next(&mut events).await?;
        ensure!(event.container_event_type() == kind, "{event:?}");
        let status = event.pod_sandbox_status.context("no status of the pod")?;
        ensure!(event.container_id == *id && status.id == sandbox);
        ensure!(status.network.is_some_and(|network| !network.ip.is_empty()));
        ensure!(event.containers_statuses.len() == containers, "{kind:?}");
    }

    // The machine ends on its own while no client is subscribed.
    stack.kill("vmlet", Signal::SIGTERM).await?;
    let ended = last(&mut events).await?;
    ensure!(ended.code() == Code::Unavailable, "{ended:?}");
    ensure!(ended.message().contains("stopping"), "{ended:?}");
    stack.restart("vmlet")?;
    let cri = stack.cri().await?;
    cri.await_ready().await?;
    let mut events = subscribe(&cri).await?;
    let listed = cri.container(&container).await?;
    ensure!(listed.state() == v1::ContainerState::ContainerRunning);
    cri.stop(&container, 0).await?;
    let event = next(&mut events).await?;
    ensure!(event.container_event_type() == Kind::ContainerStoppedEvent);
    let [status] = &event.containers_statuses[..] else {
        anyhow::bail!("{event:?}");
    };
    ensure!(status.exit_code == 137 && status.finished_at > 0);
    ensure!(status.finished_at <= event.created_at, "{event:?}");
    cri.remove_pod(&sandbox).await?;
    let ends = [
        (Kind::ContainerStoppedEvent, &sandbox),
        (Kind::ContainerDeletedEvent, &container),
        (Kind::ContainerDeletedEvent, &sandbox),
    ];
    for (kind, id) in ends {
        let event = next(&mut events).await?;
        ensure!(event.container_event_type() == kind && event.container_id == *id);
        let status = event.pod_sandbox_status.context("no status of the pod")?;
        ensure!(status.state() == v1::PodSandboxState::SandboxNotready);
        ensure!(status.metadata.is_some_and(|m| m.uid == "uid-life"));
    }

    let ended = in_time(SOON, "the end of crictl", async {
        Ok(crictl.wait().await?)
    });
    ensure!(!ended.await?.success(), "the daemon was stopped");
    let printed = printed_events(&std::fs::read_to_string(&printed)?, &sandbox, &container)?;
    let expected = [
        "CONTAINER_CREATED_EVENT of the sandbox",
        "CONTAINER_STARTED_EVENT of the sandbox",
        "CONTAINER_CREATED_EVENT of the container",
        "CONTAINER_STARTED_EVENT of the container",
    ];
    ensure!(printed == expected, "{printed:?}");
    drop(events);
    the_newest_container_is_first(&stack, &image).await?;
    stack.await_clean().await?;
    stack.down()
}

/// kubelet takes the first container of a name in a pod's status as the current one.
async fn the_newest_container_is_first(stack: &Stack, image: &str) -> Result<()> {
    let cri = stack.cri().await?;
    let pod = PodOptions::named("attempts", stack);
    let sandbox = cri.run(pod.sandbox()).await?;
    for attempt in 0..6 {
        // Each takes the place of the one before, which never ran.
        Box::pin(cri.create(&sandbox, pod.container(image, attempt), pod.sandbox())).await?;
    }
    let request = v1::PodSandboxStatusRequest {
        pod_sandbox_id: sandbox.clone(),
        verbose: false,
    };
    let status = cri.runtime.clone().pod_sandbox_status(request).await?;
    let containers = status.into_inner().containers_statuses;
    let attempts = containers
        .iter()
        .map(|c| c.metadata.as_ref().map(|m| m.attempt));
    let attempts: Vec<_> = attempts.collect();
    ensure!(attempts == [5, 4, 3, 2, 1, 0].map(Some), "{attempts:?}");
    cri.remove_pod(&sandbox).await?;
    Ok(())
}

async fn subscribe(cri: &Cri) -> Result<Events> {
    let mut runtime = cri.runtime.clone();
    let request = v1::GetEventsRequest {};
    Ok(runtime.get_container_events(request).await?.into_inner())
}

async fn next(events: &mut Events) -> Result<v1::ContainerEventResponse> {
    let event = in_time(BOOT, "an event", async { Ok(events.message().await?) });
    event.await?.context("the stream ended")
}

/// How the stream ends.
async fn last(events: &mut Events) -> Result<Status> {
    let end = in_time(SOON, "the end of the stream", async {
        Ok(events.message().await)
    });
    end.await?.err().context("another event")
}

/// What crictl printed about a pod: one JSON object after the other.
fn printed_events(text: &str, sandbox: &str, container: &str) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for event in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        let event = event.with_context(|| text.to_owned())?;
        let kind = event["containerEventType"].as_str().context("no type")?;
        if event["containerId"] == sandbox {
            all.push(format!("{kind} of the sandbox"));
        } else if event["containerId"] == container {
            all.push(format!("{kind} of the container"));
        }
    }
    Ok(all)
}
