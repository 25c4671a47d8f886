//! What kubelet relies on beyond the life cycle: cgroups, log rotation, name servers, orderly
//! restarts.
//!
//! Invariant: each guarantee is observed from outside: the kernel's files, the log, the guest's own
//! words.
//! Failure: the test shows what the kernel, the log or the guest reported instead.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Console, PodOptions, Stack, await_text, cases, eventually, ticks, v1};
use nix::sys::signal::Signal;

const BOOT: Duration = Duration::from_secs(180);

#[tokio::test]
#[ignore = "needs root"]
async fn kubelet_has_what_it_needs_beyond_the_life_cycle() -> Result<()> {
    let stack = Stack::up()?;
    cases!(
        &stack,
        [
            qemu_starts_in_the_cgroup_of_its_pod,
            a_rotated_log_goes_on_in_the_new_file_without_a_gap,
            the_guest_learns_its_name_and_its_name_servers,
            sigterm_ends_the_daemon_and_no_machine
        ]
    );
    stack.down()
}

async fn qemu_starts_in_the_cgroup_of_its_pod(stack: &Stack) -> Result<()> {
    let cri = stack.cri().await?;
    let image = cri.await_image(stack).await?;
    let parent = format!("/{}/pod-x", stack.var("VMLET_NETNS")?);
    let mut pod = PodOptions::named("caged", stack);
    pod.cgroup_parent.clone_from(&parent);
    let sandbox = cri.run(pod.sandbox()).await?;
    let container = Box::pin(cri.create(&sandbox, pod.container(&image, 0), pod.sandbox())).await?;

    let refused = cri
        .start(&container)
        .await
        .err()
        .context("started in a cgroup that is not there")?;
    ensure!(
        refused.message().contains(parent.trim_start_matches('/')),
        "{refused:?}"
    );
    let status = cri.container(&container).await?;
    ensure!(
        (status.exit_code, status.reason.as_str()) == (128, "StartError"),
        "{status:?}"
    );
    cri.remove(&container).await?;

    let groups = Groups::make(&parent)?;
    let container = Box::pin(cri.create(&sandbox, pod.container(&image, 1), pod.sandbox())).await?;
    cri.start(&container).await?;
    let members = groups.members()?;
    ensure!(!members.is_empty(), "no process is in {parent}");
    for pid in &members {
        let name = std::fs::read_to_string(format!("/proc/{pid}/cmdline"))?;
        ensure!(name.contains("qemu-system"), "{pid} in {parent} is {name}");
    }
    cri.remove_pod(&sandbox).await?;
    eventually(BOOT, "an empty cgroup", || async {
        ensure!(groups.members()?.is_empty());
        Ok(())
    })
    .await?;
    drop(groups);
    stack.await_clean().await
}

async fn a_rotated_log_goes_on_in_the_new_file_without_a_gap(stack: &Stack) -> Result<()> {
    let cri = stack.cri().await?;
    let image = cri.await_image(stack).await?;
    let pod = PodOptions::named("rotated", stack);
    let (sandbox, container) = cri.boot(&pod, &image).await?;
    let log = pod.log(0);
    await_text(&log, "VMLET-TICK 2 ", BOOT).await?;
    let old = log.with_extension("log.1");
    std::fs::rename(&log, &old)?;
    let reopen = v1::ReopenContainerLogRequest {
        container_id: container.clone(),
    };
    cri.runtime.clone().reopen_container_log(reopen).await?;
    ensure!(log.exists(), "the new file is there before the answer");
    let size = std::fs::metadata(&old)?.len();
    await_text(&log, "VMLET-TICK", BOOT).await?;
    ensure!(
        std::fs::metadata(&old)?.len() == size,
        "the rotated file still grows"
    );
    // Of the file that grows, whole lines.
    let mut new = std::fs::read_to_string(&log)?;
    new.truncate(new.rfind('\n').map_or(0, |end| end + 1));
    let both = std::fs::read_to_string(&old)? + &new;
    for pair in ticks(&both).windows(2) {
        ensure!(
            pair[1].count == pair[0].count + 1,
            "a gap or a double: {pair:?}"
        );
    }
    for line in both.lines() {
        let mut parts = line.splitn(4, ' ');
        let time = parts.next().unwrap_or_default();
        ensure!(
            time.len() == 30 && time.ends_with('Z'),
            "the time of {line:?}"
        );
        ensure!(parts.next() == Some("stdout"), "{line:?}");
        ensure!(matches!(parts.next(), Some("F" | "P")), "{line:?}");
    }
    cri.stop(&container, 0).await?;
    let reopen = v1::ReopenContainerLogRequest {
        container_id: container,
    };
    let refused = cri.runtime.clone().reopen_container_log(reopen).await.err();
    ensure!(refused.is_some_and(|e| e.code() == tonic::Code::FailedPrecondition));
    cri.remove_pod(&sandbox).await?;
    stack.await_clean().await
}

async fn the_guest_learns_its_name_and_its_name_servers(stack: &Stack) -> Result<()> {
    let cri = stack.cri().await?;
    let image = cri.await_image(stack).await?;
    let pod = PodOptions::named("named", stack);
    let mut config = pod.sandbox();
    config.dns_config = Some(v1::DnsConfig {
        servers: vec!["10.96.0.10".to_owned()],
        searches: vec![
            "default.svc.cluster.local".to_owned(),
            "cluster.local".to_owned(),
        ],
        options: vec!["ndots:5".to_owned()],
    });
    let sandbox = cri.run(config).await?;
    let container = Box::pin(cri.create(&sandbox, pod.container(&image, 0), pod.sandbox())).await?;
    cri.start(&container).await?;
    await_text(&pod.log(0), "VMLET-GUEST-READY", BOOT).await?;
    let mut console = Console::open(stack, &container)?;
    // The sum distinguishes the end of the output from what was typed.
    let words =
        "hostname; cat /etc/resolv.conf; cat /sys/class/net/*/address; echo end-of-$((40+2))";
    console.type_line(words)?;
    let log = await_text(&pod.log(0), "end-of-42", BOOT).await?;
    for word in [
        "F named",
        "nameserver 10.96.0.10",
        "default.svc.cluster.local",
    ] {
        ensure!(log.contains(word), "{word:?} is missing: {log}");
    }
    let mac = stack_mac(stack, &sandbox)?;
    ensure!(
        log.contains(&mac),
        "the guest's NIC has not the plugin's address {mac}: {log}"
    );
    cri.remove_pod(&sandbox).await?;
    stack.await_clean().await
}

async fn sigterm_ends_the_daemon_and_no_machine(stack: &Stack) -> Result<()> {
    let cri = stack.cri().await?;
    let image = cri.await_image(stack).await?;
    let pod = PodOptions::named("steady", stack);
    let (sandbox, container) = cri.boot(&pod, &image).await?;
    await_text(&pod.log(0), "VMLET-GUEST-READY", BOOT).await?;
    for program in ["vmlet", "vmlet-tapmanager"] {
        // The machine continues while this is awaited: nothing that it does ends the program.
        stack.kill(program, Signal::SIGTERM).await?;
        stack.restart(program)?;
    }
    let cri = stack.cri().await?;
    cri.await_ready().await?;
    let status = cri.container(&container).await?;
    ensure!(
        status.state == v1::ContainerState::ContainerRunning as i32,
        "{status:?}"
    );
    let before = ticks(&std::fs::read_to_string(pod.log(0))?).len();
    eventually(BOOT, "the guest's next words", || async {
        ensure!(ticks(&std::fs::read_to_string(pod.log(0))?).len() > before + 1);
        Ok(())
    })
    .await?;
    // A guest that is requested to power off does so; one whose grace was over would have been
    // killed.
    cri.stop(&container, 600).await?;
    let status = cri.container(&container).await?;
    ensure!(
        (status.exit_code, status.reason.as_str()) == (0, "Completed"),
        "{status:?}"
    );
    cri.remove_pod(&sandbox).await?;
    stack.await_clean().await
}

/// A cgroup in every hierarchy that limits something, removed when dropped.
struct Groups(Vec<PathBuf>);

impl Groups {
    fn make(parent: &str) -> Result<Self> {
        let root = Path::new("/sys/fs/cgroup");
        let unified = root.join("cgroup.controllers").exists();
        let roots = if unified {
            vec![root.to_owned()]
        } else {
            ["memory", "cpu", "pids"]
                .map(|c| root.join(c))
                .into_iter()
                .filter(|p| p.exists())
                .collect()
        };
        let groups: Vec<_> = roots
            .iter()
            .map(|r| r.join(parent.trim_start_matches('/')))
            .collect();
        for group in &groups {
            std::fs::create_dir_all(group)?;
        }
        Ok(Self(groups))
    }

    /// Processes in any of the groups or their leaves.
    fn members(&self) -> Result<Vec<i32>> {
        let mut members = Vec::new();
        for group in &self.0 {
            for file in [group.join("cgroup.procs"), group.join("vmlet/cgroup.procs")] {
                let Ok(text) = std::fs::read_to_string(&file) else {
                    continue;
                };
                for line in text.lines() {
                    members.push(line.parse()?);
                }
            }
        }
        Ok(members)
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for group in &self.0 {
            let parent = group.parent().map(Path::to_owned).unwrap_or_default();
            for dir in [group.join("vmlet"), group.clone(), parent] {
                let _ = std::fs::remove_dir(dir);
            }
        }
    }
}

/// The MAC address that the plugin gave the pod, from the verbose status.
fn stack_mac(stack: &Stack, sandbox: &str) -> Result<String> {
    let status: serde_json::Value = serde_json::from_str(&stack.crictl(&["inspectp", sandbox])?)?;
    let interfaces = status["info"]["cniResult"]["interfaces"]
        .as_array()
        .context("interfaces")?;
    let inner = interfaces
        .iter()
        .find(|i| i["name"] == "eth0")
        .context("eth0")?;
    Ok(inner["mac"].as_str().context("mac")?.to_lowercase())
}
