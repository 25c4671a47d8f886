//! What processes of one machine do not get, and a guest whose agent is stopped.
//!
//! Invariant: each refusal has its code and says what to do; the end of a killed process is recorded
//! although its guest does not confirm it.
//! Failure: the step is named; the answer of the daemon follows.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cri, PodOptions, Stack, eventually, in_time, v1};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tonic::{Code, Status};

use crate::streaming::Attached;

const HANDLER: &str = "vmlet-process";
const VM: &str = "2c7f0b1e-5a44-4c0f-9f0e-6d2f8a1b3c4d";
const SOON: Duration = Duration::from_secs(120);
const REFUSED: Code = Code::FailedPrecondition;

/// A container that is a process.
fn process(pod: &PodOptions, image: &str, name: &str, script: &str) -> v1::ContainerConfig {
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata {
            name: name.to_owned(),
            attempt: 0,
        }),
        command: ["sh", "-c", script].map(str::to_owned).into(),
        log_path: format!("{name}.log"),
        ..pod.container(image, 0)
    }
}

fn is_refused(answer: Result<impl std::fmt::Debug, Status>, words: &str) -> Result<()> {
    is_refused_by(answer, words, REFUSED)
}

fn is_refused_by(
    answer: Result<impl std::fmt::Debug, Status>,
    words: &str,
    code: Code,
) -> Result<()> {
    let error = answer
        .err()
        .with_context(|| format!("not refused: {words}"))?;
    ensure!(
        error.code() == code && error.message().contains(words),
        "{error:?}"
    );
    Ok(())
}

#[tokio::test]
#[ignore = "needs root"]
async fn processes_have_the_limits_of_their_machine_and_of_its_agent() -> Result<()> {
    let stack = Stack::up()?;
    let cri = stack.cri().await?;
    let image = cri.await_image(&stack).await?;
    pods_without_processes(&stack, &cri, &image).await?;

    let pod = PodOptions::named("limits", &stack);
    let sandbox = cri.run_by(pod.sandbox(), HANDLER).await?;
    let create = async |config| Box::pin(cri.create(&sandbox, config, pod.sandbox())).await;
    let other = create(process(&pod, &image, "other", "exec sleep 2000")).await?;
    cri.start(&other).await?;
    another_image_is_refused(&stack, &cri, &sandbox, &pod)
        .await
        .context("another image")?;
    a_process_is_not_resized(&cri, &other)
        .await
        .context("resize")?;
    let mut typed = process(
        &pod,
        &image,
        "typed",
        "while read line; do echo got-$line; done; exit 9",
    );
    (typed.stdin, typed.stdin_once) = (true, true);
    let typed = create(typed).await?;
    cri.start(&typed).await?;
    a_process_is_attached_to(&stack, &cri, &typed)
        .await
        .context("attach")?;
    let lost = create(process(&pod, &image, "lost", "exec sleep 1000")).await?;
    cri.start(&lost).await?;
    a_kill_is_recorded_without_its_guest(&stack, &cri, &lost, &other)
        .await
        .context("a stopped agent")?;
    cri.remove_pod(&sandbox).await?;
    stack.await_clean().await?;
    stack.down()
}

/// Pods that have no place for processes.
async fn pods_without_processes(stack: &Stack, cri: &Cri, image: &str) -> Result<()> {
    let disks = r#"[{"devicePath": "/", "mountPath": "/data"}]"#;
    for (name, value, words, code) in [
        ("guest-agent", "off", "remove the annotation", REFUSED),
        ("vm-disk", VM, "use the handler vmlet", REFUSED),
        (
            "file-disks",
            disks,
            "whose container is a machine",
            Code::InvalidArgument,
        ),
    ] {
        let mut pod = PodOptions::named(name, stack);
        let key = format!("vmlet.dev/{name}");
        pod.annotations.insert(key, value.to_owned());
        let sandbox = cri.run_by(pod.sandbox(), HANDLER).await?;
        let config = process(&pod, image, "process", "true");
        let created = Box::pin(cri.create(&sandbox, config, pod.sandbox()));
        is_refused_by(created.await, words, code).context(name)?;
        cri.remove_pod(&sandbox).await?;
    }
    stack.await_clean().await
}

/// The image of a container that is a process is that of the pod machine.
async fn another_image_is_refused(
    stack: &Stack,
    cri: &Cri,
    sandbox: &str,
    pod: &PodOptions,
) -> Result<()> {
    let mut disk = vec![0; 1 << 20];
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    let served = stack.dir().join("served");
    std::fs::create_dir_all(&served)?;
    std::fs::write(served.join("other.img"), disk)?;
    let url = stack.var("VMLET_TEST_IMAGE_URL")?;
    let server = url
        .strip_prefix("http://")
        .and_then(|url| url.split('/').next());
    let image = format!("{}/other.img", server.context(url.to_owned())?);
    cri.pull(&image).await?;
    let config = process(pod, &image, "other-image", "true");
    let created = Box::pin(cri.create(sandbox, config, pod.sandbox())).await;
    is_refused(created, "have the same image")?;
    let containers = cri.containers().await?;
    ensure!(containers.len() == 1, "{containers:?}");
    Ok(())
}

/// A process uses what its machine has, which keeps its size.
async fn a_process_is_not_resized(cri: &Cri, id: &str) -> Result<()> {
    let memory = v1::LinuxContainerResources {
        memory_limit_in_bytes: 1 << 40,
        ..v1::LinuxContainerResources::default()
    };
    is_refused(cri.update(id, memory).await, "for its life: make a new pod")?;
    let cpus = v1::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 800_000,
        ..v1::LinuxContainerResources::default()
    };
    is_refused(cri.update(id, cpus).await, "for its life: make a new pod")
}

/// The client's input is that of the process, whose end is that of the session.
async fn a_process_is_attached_to(stack: &Stack, cri: &Cri, id: &str) -> Result<()> {
    let mut client = Attached::start(stack, &["attach", "-i", id])?;
    let mut keyboard = client.child.stdin.take().context("no input")?;
    keyboard.write_all(b"one\n").await?;
    in_time(SOON, "the answer of the process", client.until("got-one")).await?;
    drop(keyboard);
    let ended = cri.await_exit(id, SOON).await?;
    ensure!(ended.exit_code == 9, "{ended:?}");
    let left = async { Ok(client.child.wait().await?) };
    let left = in_time(SOON, "the end of the session", left).await?;
    ensure!(left.success(), "crictl: {left}");
    Ok(())
}

/// SIGSTOP of `vmlet-guest`: it reports nothing, until it goes on and learns what happened.
async fn a_kill_is_recorded_without_its_guest(
    stack: &Stack,
    cri: &Cri,
    id: &str,
    other: &str,
) -> Result<()> {
    signal_agent(stack, "STOP").await?;
    cri.stop(id, 1).await?;
    let ended = cri.container(id).await?;
    ensure!(
        ended.exit_code == 137 && ended.message.contains("did not report the end"),
        "{ended:?}"
    );
    signal_agent(stack, "CONT").await?;
    eventually(SOON, "the end of the process in the guest", || async {
        let left = cri.shell(other, "pgrep -f 'sleep 100[0]' || true").await?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })
    .await?;
    let status = cri.container(other).await?;
    ensure!(
        status.state() == v1::ContainerState::ContainerRunning,
        "{status:?}"
    );
    Ok(())
}

/// By the QEMU guest agent, which needs no `vmlet-guest`.
async fn signal_agent(stack: &Stack, signal: &str) -> Result<()> {
    let domains = stack.domains()?;
    let [domain] = domains.as_slice() else {
        anyhow::bail!("{domains:?}");
    };
    let script = format!("kill -{signal} $(pidof vmlet-guest)");
    let command = json!({"execute": "guest-exec", "arguments":
        {"path": "/bin/sh", "arg": ["-c", script]}});
    let command = command.to_string();
    eventually(SOON, "the QEMU guest agent", || async {
        stack.virsh(&["qemu-agent-command", domain, &command])
    })
    .await?;
    let state = if signal == "STOP" { "T" } else { "S" };
    let seen = format!("grep -q '^State:.{state}' /proc/$(pidof vmlet-guest)/status");
    eventually(SOON, "a signal that has arrived", || async {
        let run = json!({"execute": "guest-exec", "arguments":
            {"path": "/bin/sh", "arg": ["-c", seen]}});
        let started = stack.virsh(&["qemu-agent-command", domain, &run.to_string()])?;
        let started: serde_json::Value = serde_json::from_str(&started)?;
        let pid = &started["return"]["pid"];
        let query = json!({"execute": "guest-exec-status", "arguments": {"pid": pid}});
        let ended = stack.virsh(&["qemu-agent-command", domain, &query.to_string()])?;
        let ended: serde_json::Value = serde_json::from_str(&ended)?;
        ensure!(ended["return"]["exitcode"] == 0, "{ended}");
        Ok(())
    })
    .await
}
