//! Containers that are processes of one machine.
//!
//! Invariant: each container has its own log, its own exit code and its own settings; what runs
//! outlives the daemon, and no byte of its output is lost or repeated.
//! Failure: the step is named; logs and states follow.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cri, PodOptions, Stack, eventually, v1};
use nix::sys::signal::Signal;
use tonic::Code;

use crate::faults::{restart_dead, step};

const HANDLER: &str = "vmlet-process";
/// The value of a variable: it may be a secret.
const SECRET: &str = "a value";
pub(crate) const SOON: Duration = Duration::from_secs(120);

/// A pod of processes.
pub(crate) struct Pod<'a> {
    pub(crate) cri: Cri,
    options: PodOptions,
    sandbox: String,
    image: String,
    pub(crate) stack: &'a Stack,
}

impl<'a> Pod<'a> {
    async fn new(stack: &'a Stack, name: &str) -> Result<Self> {
        Self::with(stack, name, |_| {}).await
    }

    /// A pod with further settings.
    pub(crate) async fn with(
        stack: &'a Stack,
        name: &str,
        set: impl FnOnce(&mut v1::PodSandboxConfig),
    ) -> Result<Self> {
        let cri = stack.cri().await?;
        cri.await_ready().await?;
        let image = stack.image()?.to_owned();
        cri.pull(&image).await?;
        let options = PodOptions::named(name, stack);
        let mut config = options.sandbox();
        set(&mut config);
        let sandbox = cri.run_by(config, HANDLER).await?;
        Ok(Self {
            cri,
            options,
            sandbox,
            image,
            stack,
        })
    }

    pub(crate) fn config(&self, name: &str, script: &str) -> v1::ContainerConfig {
        v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata {
                name: name.to_owned(),
                attempt: 0,
            }),
            command: ["sh", "-c", script].map(str::to_owned).into(),
            log_path: format!("{name}.log"),
            ..self.options.container(&self.image, 0)
        }
    }

    pub(crate) async fn create(
        &self,
        config: v1::ContainerConfig,
    ) -> Result<String, tonic::Status> {
        Box::pin(
            self.cri
                .create(&self.sandbox, config, self.options.sandbox()),
        )
        .await
    }

    pub(crate) async fn start(&self, config: v1::ContainerConfig) -> Result<String> {
        let id = self.create(config).await?;
        self.cri.start(&id).await?;
        Ok(id)
    }

    fn log(&self, name: &str) -> PathBuf {
        self.options.logs.join(format!("{name}.log"))
    }

    /// The records of a log without their times.
    pub(crate) fn records(&self, name: &str) -> Result<Vec<String>> {
        let text = std::fs::read_to_string(self.log(name)).unwrap_or_default();
        let records = text.lines().map(|line| {
            let (_, record) = line.split_once(' ').context("no time")?;
            Ok(record.to_owned())
        });
        records.collect()
    }

    pub(crate) async fn remove(self) -> Result<()> {
        self.cri.remove_pod(&self.sandbox).await?;
        self.stack.await_clean().await
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn containers_are_processes_of_one_machine() -> Result<()> {
    let stack = Stack::up()?;
    let pod = Pod::new(&stack, "parts").await?;
    settings_reach_the_process(&pod).await?;
    output_outlives_the_daemon(&pod).await?;
    what_no_guest_can_do_is_refused(&pod).await?;
    pod.remove().await?;
    stack.down()
}

/// Streams, exit codes, users, variables, directories, limits; several at once.
async fn settings_reach_the_process(pod: &Pod<'_>) -> Result<()> {
    let script = "echo out; echo err >&2; printf rest; exit 3";
    let first = pod.start(pod.config("first", script)).await?;
    let script = "id -u; id -g; pwd; echo $NAME; grep -E '^(CapEff|NoNewPrivs)' /proc/self/status; \
                  touch /x || echo read-only; exec sleep 1000";
    let mut second = pod.config("second", script);
    second.working_dir = "/tmp".to_owned();
    second.envs = vec![v1::KeyValue {
        key: "NAME".to_owned(),
        value: SECRET.as_bytes().to_vec(),
    }];
    let security = v1::LinuxContainerSecurityContext {
        run_as_user: Some(v1::Int64Value { value: 1234 }),
        run_as_group: Some(v1::Int64Value { value: 4321 }),
        no_new_privs: true,
        readonly_rootfs: true,
        capabilities: Some(v1::Capability {
            drop_capabilities: vec!["ALL".to_owned()],
            ..v1::Capability::default()
        }),
        ..v1::LinuxContainerSecurityContext::default()
    };
    if let Some(linux) = &mut second.linux {
        linux.security_context = Some(security.clone());
    } else {
        second.linux = Some(v1::LinuxContainerConfig {
            security_context: Some(security),
            ..v1::LinuxContainerConfig::default()
        });
    }
    let second = pod.start(second).await?;
    let status = pod.cri.await_exit(&first, SOON).await?;
    ensure!(
        status.exit_code == 3 && status.reason == "Error",
        "{status:?}"
    );
    let mut records = pod.records("first")?;
    records.sort();
    let expected = ["stderr F err", "stdout F out", "stdout F rest"];
    ensure!(records == expected, "{records:?}");

    let expected = [
        "stdout F 1234",
        "stdout F 4321",
        "stdout F /tmp",
        "stdout F a value",
        "stdout F CapEff:\t0000000000000000",
        "stdout F NoNewPrivs:\t1",
    ];
    eventually(SOON, "the output of the second process", || async {
        let mut records = pod.records("second")?;
        ensure!(
            records.contains(&"stdout F read-only".to_owned()),
            "{records:?}"
        );
        records.truncate(expected.len());
        ensure!(records == expected, "{records:?}");
        Ok(())
    })
    .await?;
    for entry in std::fs::read_dir(pod.stack.dir().join("state"))? {
        let path = entry?.path();
        if path.is_file() {
            let bytes = std::fs::read(&path)?;
            let is_there = bytes
                .windows(SECRET.len())
                .any(|part| part == SECRET.as_bytes());
            ensure!(!is_there, "a variable is in {}", path.display());
        }
    }
    ensure!(
        !pod.stack.log("vmlet").contains(SECRET),
        "a variable is in the log"
    );
    // A command in it has its user and its variables.
    let seen = pod.cri.shell(&second, "id -u; echo $NAME").await?;
    ensure!(seen.trim() == "1234\na value", "{seen:?}");
    let request = v1::ContainerStatsRequest {
        container_id: second.clone(),
    };
    let mut runtime = pod.cri.runtime.clone();
    let stats = runtime.container_stats(request);
    let stats = stats.await?.into_inner().stats.context("no stats")?;
    ensure!(
        stats.memory.is_some_and(|memory| memory.timestamp > 0),
        "no memory"
    );
    ensure!(
        pod.cri.containers().await?.len() == 2,
        "the pod machine is listed"
    );
    pod.cri.stop(&second, 30).await?;
    let status = pod.cri.await_exit(&second, SOON).await?;
    ensure!(status.exit_code == 143, "{status:?}");
    Ok(())
}

/// kill -9 of the daemon while a process writes.
async fn output_outlives_the_daemon(pod: &Pod<'_>) -> Result<()> {
    let script = "trap 'echo bye; exit 7' TERM; i=0; while :; do i=$((i+1)); echo $i; \
                  usleep 20000; done";
    let id = pod.start(pod.config("counter", script)).await?;
    for round in 1..=3 {
        let enough = 50 * round;
        eventually(SOON, "lines of the counter", || async {
            let records = pod.records("counter")?;
            ensure!(records.len() > enough, "{} lines", records.len());
            Ok(())
        })
        .await?;
        pod.stack.kill("vmlet", Signal::SIGKILL).await?;
        pod.stack.restart("vmlet")?;
        pod.stack.cri().await?.await_ready().await?;
    }
    let cri = pod.stack.cri().await?;
    let before = pod.records("counter")?.len();
    eventually(SOON, "more lines of the counter", || async {
        ensure!(pod.records("counter")?.len() > before + 20);
        Ok(())
    })
    .await?;
    ensure!(cri.container(&id).await?.state() == v1::ContainerState::ContainerRunning);
    cri.stop(&id, 30).await?;
    let status = cri.container(&id).await?;
    ensure!(status.exit_code == 7, "{status:?}");
    let mut records = pod.records("counter")?;
    ensure!(
        records.pop().as_deref() == Some("stdout F bye"),
        "{records:?}"
    );
    for (index, record) in records.iter().enumerate() {
        let expected = format!("stdout F {}", index + 1);
        ensure!(*record == expected, "{record} in the place of {expected}");
    }
    Ok(())
}

async fn what_no_guest_can_do_is_refused(pod: &Pod<'_>) -> Result<()> {
    let cri = pod.stack.cri().await?;
    let refused = async |config: v1::ContainerConfig, code: Code, word: &str| {
        let create = Box::pin(cri.create(&pod.sandbox, config, pod.options.sandbox()));
        let error = create.await.err().context("it is accepted")?;
        ensure!(
            error.code() == code && error.message().contains(word),
            "{error:?}"
        );
        Ok(())
    };
    // Without a command it would be a machine, and the pod has one.
    let mut second = pod.config("second-machine", "");
    second.command.clear();
    refused(
        second,
        Code::FailedPrecondition,
        "has a virtual machine already",
    )
    .await?;
    let mut profile = pod.config("profile", "true");
    let localhost = v1::SecurityProfile {
        profile_type: v1::security_profile::ProfileType::Localhost.into(),
        localhost_ref: "profile".to_owned(),
    };
    let linux = profile.linux.get_or_insert_default();
    linux.security_context = Some(v1::LinuxContainerSecurityContext {
        apparmor: Some(localhost),
        ..v1::LinuxContainerSecurityContext::default()
    });
    refused(profile, Code::InvalidArgument, "security_context.apparmor").await?;
    let twice = pod.config("twice", "true");
    Box::pin(cri.create(&pod.sandbox, twice.clone(), pod.options.sandbox())).await?;
    refused(twice, Code::AlreadyExists, "exists already").await?;
    let missing = pod.config("missing", "true");
    let missing = v1::ContainerConfig {
        command: vec!["/no/such/program".to_owned()],
        ..missing
    };
    let id = Box::pin(cri.create(&pod.sandbox, missing, pod.options.sandbox())).await?;
    let error = cri.start(&id).await.err().context("it started")?;
    ensure!(error.message().contains("/no/such/program"), "{error:?}");
    let status = cri.container(&id).await?;
    ensure!(
        status.exit_code == 128 && status.reason == "StartError",
        "{status:?}"
    );
    Ok(())
}

/// The crash points of processes.
const POINTS: [&str; 8] = [
    "process.create.recorded",
    "process.settings.written",
    "process.create.created",
    "process.start.recorded",
    "process.start.running",
    "process.log.written",
    "process.exit.known",
    "process.exit.recorded",
];

#[tokio::test]
#[ignore = "needs root"]
async fn a_daemon_that_was_killed_anywhere_continues_with_its_processes() -> Result<()> {
    let stack = Stack::up()?;
    let pod = Pod::new(&stack, "crashes").await?;
    // The pod machine boots once.
    let first = pod.start(pod.config("first", "exec sleep 100000")).await?;
    for point in POINTS {
        stack.arm(point)?;
        life(&pod, point)
            .await
            .with_context(|| format!("killed at {point}"))?;
        ensure!(!stack.is_armed(point), "no request reached {point}");
    }
    let cri = stack.cri().await?;
    let status = cri.container(&first).await?;
    ensure!(status.state() == v1::ContainerState::ContainerRunning);
    let left = cri.shell(&first, "pgrep -f 'echo on[e]' || true").await?;
    ensure!(left.is_empty(), "processes of removed containers: {left}");
    pod.remove().await?;
    stack.down()
}

/// Each step repeated after the daemon is back.
async fn life(pod: &Pod<'_>, point: &str) -> Result<()> {
    let stack = pod.stack;
    let name = point.replace('.', "-");
    let config = pod.config(&name, "echo one; echo two; exit 4");
    let id = step(stack, "CreateContainer", async |cri| {
        Box::pin(cri.create(&pod.sandbox, config.clone(), pod.options.sandbox())).await
    })
    .await?;
    if let Err(error) = step(stack, "StartContainer", async |cri| cri.start(&id).await).await {
        // The process is so short that it may have ended before the daemon was killed.
        let words = format!("{error:#}");
        ensure!(words.contains("is exited: it cannot be started"), "{words}");
    }
    eventually(SOON, "the end of the process", || async {
        if restart_dead(stack).await? > 0 {
            stack.cri().await?.await_ready().await?;
        }
        let status = stack.cri().await?.container(&id).await?;
        ensure!(status.state() == v1::ContainerState::ContainerExited);
        ensure!(status.exit_code == 4, "{status:?}");
        Ok(())
    })
    .await?;
    step(stack, "RemoveContainer", async |cri| cri.remove(&id).await).await?;
    let records = pod.records(&name)?;
    ensure!(records == ["stdout F one", "stdout F two"], "{records:?}");
    Ok(())
}
