//! Every command of crictl, in every format that it has.
//!
//! Invariant: the list of commands is that of `crictl --help`: a command without a row fails the
//! test. What is printed as JSON is read as JSON.
//! Failure: the command line, with both streams.

use std::collections::BTreeSet;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cri, PodOptions, Stack, await_text, eventually, program};
use serde_json::{Value, json};

use super::crictl::manifests;

const BOOT: Duration = Duration::from_secs(180);

/// Commands that tests of their own run: sessions in `streaming`, events in `events`, a life from
/// `runp` to `rmp` in `crictl`; `help` is how this test begins.
const ELSEWHERE: &[&str] = &[
    "attach",
    "port-forward",
    "events",
    "runp",
    "create",
    "start",
    "pull",
    "help",
];

/// What is listed and inspected: arguments, and what is printed.
const ROWS: &[(&[&str], &[&str])] = &[
    (
        &["version"],
        &["RuntimeName:  vmlet", "RuntimeApiVersion:  v1"],
    ),
    (&["info"], &["RuntimeReady"]),
    (&["info", "-o", "yaml"], &["type: NetworkReady"]),
    (
        &[
            "info",
            "-o",
            "go-template",
            "--template",
            "{{.status.conditions}}",
        ],
        &["RuntimeReady"],
    ),
    (&["runtime-config"], &["cgroup driver"]),
    (
        &["update-runtime-config", "--pod-cidr", "10.88.0.0/16"],
        &[],
    ),
    (&["config", "--list"], &["timeout"]),
    (&["completion", "bash"], &["crictl"]),
    (&["pods"], &["Ready", "commands", "(default)"]),
    (&["pods", "-v"], &["ID: POD", "Runtime: (default)"]),
    (&["pods", "-o", "yaml"], &["state: SANDBOX_READY"]),
    (&["pods", "-q", "--id", "POD"], &["POD"]),
    (
        &[
            "pods",
            "-q",
            "--name",
            "^commands$",
            "--namespace",
            "default",
        ],
        &["POD"],
    ),
    (&["pods", "-q", "--state", "ready", "--latest"], &["POD"]),
    (
        &["pods", "-q", "--label", "role=test", "--last", "1"],
        &["POD"],
    ),
    (&["inspectp", "POD"], &["SANDBOX_READY", "cniResult"]),
    (
        &["inspectp", "-o", "yaml", "POD"],
        &["state: SANDBOX_READY"],
    ),
    (&["inspectp", "-o", "table", "POD"], &["IP Address"]),
    (
        &[
            "inspectp",
            "-o",
            "go-template",
            "--template",
            "{{.status.state}}",
            "POD",
        ],
        &["SANDBOX_READY"],
    ),
    (
        &["inspectp", "-q", "--name", "commands"],
        &["SANDBOX_READY"],
    ),
    (&["ps"], &["Running", "vmlet.dev/hello"]),
    (&["ps", "-v"], &["ID: CONTAINER", "State: Running"]),
    (&["ps", "-a", "-o", "yaml"], &["state: CONTAINER_RUNNING"]),
    (&["ps", "-q", "--no-trunc", "--pod", "POD"], &["CONTAINER"]),
    (
        &["ps", "-q", "--no-trunc", "--id", "CONTAINER"],
        &["CONTAINER"],
    ),
    (
        &["ps", "-q", "--no-trunc", "--image", "IMAGE"],
        &["CONTAINER"],
    ),
    (
        &[
            "ps",
            "-q",
            "--no-trunc",
            "--name",
            "^vm$",
            "--state",
            "running",
        ],
        &["CONTAINER"],
    ),
    (&["ps", "-q", "--no-trunc", "--latest"], &["CONTAINER"]),
    (&["ps", "-r"], &["vmlet.dev/hello"]),
    (
        &["inspect", "CONTAINER"],
        &["CONTAINER_RUNNING", "consoleFile"],
    ),
    (
        &["inspect", "-o", "yaml", "CONTAINER"],
        &["state: CONTAINER_RUNNING"],
    ),
    (
        &["inspect", "-o", "table", "CONTAINER"],
        &["State: CONTAINER_RUNNING"],
    ),
    (
        &[
            "inspect",
            "-o",
            "go-template",
            "--template",
            "{{.info.vm.vcpus}}",
            "CONTAINER",
        ],
        &["1"],
    ),
    (&["inspect", "-q", "--name", "vm"], &["CONTAINER_RUNNING"]),
    (&["images"], &["vmlet.dev/hello"]),
    (
        &["images", "--digests", "--no-trunc", "--pinned"],
        &["sha256:"],
    ),
    (&["images", "-v"], &["RepoTags: vmlet.dev/hello"]),
    (&["images", "-o", "yaml"], &["vmlet.dev/hello"]),
    (&["images", "-q", "IMAGE"], &["sha256:"]),
    (
        &["images", "-q", "--filter", "reference=vmlet.dev/hello"],
        &["sha256:"],
    ),
    (&["inspecti", "IMAGE"], &["repoTags", "virtualSize"]),
    (&["inspecti", "-o", "yaml", "IMAGE"], &["repoTags:"]),
    (
        &["inspecti", "-o", "table", "IMAGE"],
        &["Tag: vmlet.dev/hello"],
    ),
    (
        &[
            "inspecti",
            "-o",
            "go-template",
            "--template",
            "{{.status.size}}",
            "IMAGE",
        ],
        &["0"],
    ),
    (&["imagefsinfo"], &["imageFilesystems", "usedBytes"]),
    (&["imagefsinfo", "-o", "yaml"], &["mountpoint:"]),
    (&["imagefsinfo", "-o", "table"], &["Mountpoint"]),
    (&["stats"], &["CONTAINER13"]),
    (
        &["stats", "-a", "-o", "yaml", "--pod", "POD"],
        &["workingSetBytes"],
    ),
    (
        &["stats", "-o", "json", "--id", "CONTAINER"],
        &["usageCoreNanoSeconds"],
    ),
    (&["statsp"], &["POD13"]),
    (
        &["statsp", "-o", "yaml", "--label", "role=test"],
        &["defaultInterface"],
    ),
    (
        &["statsp", "-o", "json", "--id", "POD"],
        &["usageCoreNanoSeconds"],
    ),
    (&["metricdescs"], &["container_cpu_usage_seconds_total"]),
    (
        &["metricdescs", "-o", "yaml"],
        &["container_memory_working_set_bytes"],
    ),
    (&["metricsp"], &["container_network_receive_bytes_total"]),
    (&["metricsp", "-o", "yaml"], &["podSandboxId: POD"]),
    (&["logs", "--tail", "3", "CONTAINER"], &["VMLET-"]),
    (
        &[
            "logs",
            "-t",
            "--stream",
            "stdout",
            "--since",
            "10m",
            "CONTAINER",
        ],
        &["VMLET-GUEST-READY", "Z "],
    ),
    (&["logs", "--limit-bytes", "10", "CONTAINER"], &[]),
    (&["logs", "-r", "CONTAINER"], &[]),
    (
        &["exec", "-s", "--timeout", "60", "CONTAINER", "hostname"],
        &["commands"],
    ),
    (&["exec", "CONTAINER", "hostname"], &["commands"]),
    (
        &["exec", "--transport", "websocket", "CONTAINER", "hostname"],
        &["commands"],
    ),
    (
        &["update", "--cpu-share", "512", "CONTAINER"],
        &["CONTAINER"],
    ),
    (&["stop", "-t", "0", "CONTAINER"], &["CONTAINER"]),
    (
        &["ps", "-q", "--no-trunc", "--state", "exited"],
        &["CONTAINER"],
    ),
    (&["rm", "CONTAINER"], &["CONTAINER"]),
    (&["ps", "-a", "-q"], &[]),
    (&["stopp", "POD"], &["POD"]),
    (
        &["pods", "-q", "--no-trunc", "--state", "notready"],
        &["POD"],
    ),
    (&["rmp", "POD"], &["POD"]),
    (&["pods", "-q"], &[]),
];

/// What is refused: arguments, and the words of the refusal.
const REFUSED: &[(&[&str], &str)] = &[
    (&["inspectp", "0000"], "no sandbox has the id"),
    (&["inspect", "0000"], "no container has the id"),
    (&["inspecti", "vmlet.dev/no-such-image"], "no such image"),
    (
        &["exec", "-s", "CONTAINER", "no-such-command"],
        "no command",
    ),
    (
        &["exec", "-s", "--timeout", "1", "CONTAINER", "sleep", "600"],
        "did not end within",
    ),
    (&["rm", "CONTAINER"], "is running"),
    (&["rmp", "POD"], "is running"),
    (&["update", "--memory", "1048576", "CONTAINER"], "memory"),
];

struct Ids {
    pod: String,
    container: String,
    image: String,
}

#[tokio::test]
#[ignore = "needs root"]
async fn every_command_works_in_every_format() -> Result<()> {
    let stack = Stack::up()?;
    let cri = stack.cri().await?;
    cri.await_ready().await?;
    let ids = boot(&stack, &cri).await?;
    let mut run: BTreeSet<String> = ELSEWHERE.iter().map(|&name| name.to_owned()).collect();
    run.insert("checkpoint".to_owned());
    for (row, words) in REFUSED {
        let arguments = filled(row, &ids);
        let output = crictl(&stack, &arguments)?;
        let shown = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success(), "crictl {arguments:?} succeeds");
        ensure!(
            shown.contains(words),
            "crictl {arguments:?}: {words:?} is not in {shown}"
        );
        run.insert(arguments[0].clone());
    }
    for (row, words) in ROWS {
        let arguments = filled(row, &ids);
        let output = crictl(&stack, &arguments)?;
        ensure!(output.status.success(), "crictl {arguments:?}: {output:?}");
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        for word in *words {
            let word = &filled(&[word], &ids)[0];
            ensure!(
                shown.contains(word),
                "crictl {arguments:?}: {word:?} is not in {shown}"
            );
        }
        if words.is_empty() && row.contains(&"-q") {
            ensure!(shown.trim().is_empty(), "crictl {arguments:?}: {shown}");
        }
        run.insert(arguments[0].clone());
    }
    as_json(&stack)?;
    together(&stack, &ids, &mut run).await?;
    let missing: Vec<_> = commands(&stack)?
        .into_iter()
        .filter(|name| !run.contains(name))
        .collect();
    ensure!(missing.is_empty(), "no row for {missing:?}");
    stack.await_clean().await?;
    stack.down()
}

/// A machine whose agent answers.
async fn boot(stack: &Stack, cri: &Cri) -> Result<Ids> {
    let image = stack.image()?.to_owned();
    cri.pull(&image).await?;
    let pod = PodOptions::named("commands", stack);
    let mut config = pod.sandbox();
    config.labels.insert("role".to_owned(), "test".to_owned());
    let sandbox = cri.run(config.clone()).await?;
    let container = Box::pin(cri.create(&sandbox, pod.container(&image, 0), config)).await?;
    cri.start(&container).await?;
    await_text(&pod.log(0), "VMLET-GUEST-READY", BOOT).await?;
    cri.await_agent(&container).await?;
    Ok(Ids {
        pod: sandbox,
        container,
        image,
    })
}

/// Lists that are read as JSON, now that nothing is left.
fn as_json(stack: &Stack) -> Result<()> {
    for (arguments, key) in [
        (["pods", "-o", "json"], "items"),
        (["ps", "-o", "json"], "containers"),
        (["images", "-o", "json"], "images"),
        (["stats", "-o", "json"], "stats"),
        (["statsp", "-o", "json"], "stats"),
    ] {
        let output = crictl(stack, &arguments.map(str::to_owned))?;
        let read: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("crictl {arguments:?}: {output:?}"))?;
        ensure!(
            read.get(key).is_some_and(Value::is_array),
            "crictl {arguments:?}: {read}"
        );
    }
    Ok(())
}

/// The commands that make, end and remove several objects.
async fn together(stack: &Stack, ids: &Ids, run: &mut BTreeSet<String>) -> Result<()> {
    let pod = json!({
        "metadata": {"name": "together", "namespace": "default", "uid": "u2", "attempt": 0},
        "linux": {},
    });
    let (pod_file, container_file) = manifests(stack, &ids.image, pod)?;
    let mut call = |arguments: &[&str]| -> Result<String> {
        let arguments: Vec<_> = arguments
            .iter()
            .map(|&argument| argument.to_owned())
            .collect();
        let output = crictl(stack, &arguments)?;
        ensure!(output.status.success(), "crictl {arguments:?}: {output:?}");
        run.insert(arguments[0].clone());
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };
    let container = call(&["run", "--with-pull", &container_file, &pod_file])?;
    let container = container.lines().last().context("no id")?.to_owned();
    eventually(BOOT, "a container that runs", || async {
        let running = stack.crictl(&["ps", "-q", "--no-trunc", "--state", "running"])?;
        ensure!(running == container, "{running}");
        Ok(())
    })
    .await?;
    call(&["stop", "-t", "0", "--all"])?;
    call(&["rm", "--all"])?;
    call(&["rmp", "--all", "--force"])?;
    ensure!(call(&["pods", "-q"])?.is_empty());
    call(&["rmi", "--prune"])?;
    ensure!(call(&["images", "-q"])?.is_empty());
    Ok(())
}

/// The commands that crictl names.
fn commands(stack: &Stack) -> Result<Vec<String>> {
    let output = crictl(stack, &["--help".to_owned()])?;
    let help = String::from_utf8(output.stdout)?;
    let list = help.split_once("COMMANDS:\n").context("no commands")?.1;
    let list = list.split_once("\n\n").context("no end of the commands")?.0;
    let first = |line: &str| line.trim().split([',', ' ']).next().map(str::to_owned);
    Ok(list.lines().filter_map(first).collect())
}

/// Arguments with the ids in the place of their names.
fn filled(row: &[&str], ids: &Ids) -> Vec<String> {
    let fill = |argument: &&str| {
        argument
            .replace("POD13", &ids.pod[..13])
            .replace("CONTAINER13", &ids.container[..13])
            .replace("POD", &ids.pod)
            .replace("IMAGE", &ids.image)
            .replace("CONTAINER_RUNNING", "RUNNING-STATE")
            .replace("CONTAINER", &ids.container)
            .replace("RUNNING-STATE", "CONTAINER_RUNNING")
    };
    row.iter().map(fill).collect()
}

fn crictl(stack: &Stack, arguments: &[String]) -> Result<Output> {
    let endpoint = stack.var("CONTAINER_RUNTIME_ENDPOINT")?;
    let mut command: Command = stack.command("crictl");
    // Deadlines of the client are not the subject.
    command.args(["-r", endpoint, "-i", endpoint, "-t", "60s"]);
    let output = program::output(command.args(arguments));
    output.with_context(|| format!("crictl {arguments:?}"))
}
