//! What a container that is a process is put into: paths, a resolver configuration, kernel
//! parameters, seccomp profiles, limits.
//!
//! Invariant: the kernel of a real guest shows each of them, and the end of a container is the end
//! of all that it started.
//! Failure: the step is named.

use anyhow::{Context, Result, ensure};
use e2e::{Stack, eventually, v1};
use tonic::Code;

use crate::processes::{Pod, SOON};

/// Of the limit in the test; the guest has more.
const MEMORY: i64 = 40 << 20;

#[tokio::test]
#[ignore = "needs root"]
async fn a_process_has_the_surroundings_of_its_container() -> Result<()> {
    let stack = Stack::up()?;
    let pod = Pod::with(&stack, "surroundings", |config| {
        config.dns_config = Some(v1::DnsConfig {
            servers: vec!["192.0.2.53".to_owned()],
            searches: vec!["example.test".to_owned()],
            options: vec!["ndots:3".to_owned()],
        });
        let linux = config.linux.get_or_insert_default();
        linux.sysctls = [
            ("kernel.shm_rmid_forced".to_owned(), "1".to_owned()),
            (
                "net/ipv4/ip_local_port_range".to_owned(),
                "20000 30000".to_owned(),
            ),
        ]
        .into();
    })
    .await?;
    the_view_is_that_of_the_container(&pod).await?;
    profiles_refuse_system_calls(&pod).await?;
    limits_are_those_of_the_container(&pod).await?;
    memory_beyond_the_limit_ends_the_container(&pod).await?;
    pod.remove().await?;
    stack.down()
}

fn secured(
    config: v1::ContainerConfig,
    security: v1::LinuxContainerSecurityContext,
) -> v1::ContainerConfig {
    let mut config = config;
    config.linux.get_or_insert_default().security_context = Some(security);
    config
}

fn limited(
    config: v1::ContainerConfig,
    limits: v1::LinuxContainerResources,
) -> v1::ContainerConfig {
    let mut config = config;
    config.linux.get_or_insert_default().resources = Some(limits);
    config
}

/// The output of a container that ends by itself.
async fn output(pod: &Pod<'_>, config: v1::ContainerConfig) -> Result<Vec<String>> {
    let name = config.metadata.clone().context("no name")?.name;
    let id = pod.start(config).await?;
    let status = pod.cri.await_exit(&id, SOON).await?;
    let records = pod.records(&name)?;
    ensure!(status.exit_code == 0, "{status:?}: {records:?}");
    Ok(records)
}

async fn the_view_is_that_of_the_container(pod: &Pod<'_>) -> Result<()> {
    let script = "cat /etc/resolv.conf /proc/sys/kernel/shm_rmid_forced \
                  /proc/sys/net/ipv4/ip_local_port_range; cat /proc/version; ls -A /proc/bus; \
                  echo 1 2>/dev/null > /proc/sys/kernel/panic || echo read-only; \
                  echo 1 > /proc/sys/kernel/printk && echo writable";
    let security = v1::LinuxContainerSecurityContext {
        masked_paths: ["/proc/version", "/proc/bus", "/no/such/path"]
            .map(str::to_owned)
            .into(),
        readonly_paths: ["/proc/sys/kernel/panic"].map(str::to_owned).into(),
        ..v1::LinuxContainerSecurityContext::default()
    };
    let records = output(pod, secured(pod.config("view", script), security)).await?;
    let expected = [
        "stdout F search example.test",
        "stdout F nameserver 192.0.2.53",
        "stdout F options ndots:3",
        "stdout F 1",
        "stdout F 20000\t30000",
        "stdout F read-only",
        "stdout F writable",
    ];
    ensure!(records == expected, "{records:?}");
    // Another container of the pod has other paths.
    let records = output(pod, pod.config("no-view", "wc -l < /proc/version")).await?;
    ensure!(records == ["stdout F 1"], "{records:?}");
    Ok(())
}

async fn profiles_refuse_system_calls(pod: &Pod<'_>) -> Result<()> {
    let of_node = pod.stack.dir().join("no-hostname.json");
    let profile = r#"{"defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["sethostname"], "action": "SCMP_ACT_ERRNO"}]}"#;
    std::fs::write(&of_node, profile)?;
    let localhost = of_node.display().to_string();
    let script = "grep Seccomp: /proc/self/status; hostname other || echo refused";
    for (name, kind, path) in [
        (
            "default",
            v1::security_profile::ProfileType::RuntimeDefault,
            "",
        ),
        (
            "localhost",
            v1::security_profile::ProfileType::Localhost,
            &*localhost,
        ),
    ] {
        let security = v1::LinuxContainerSecurityContext {
            seccomp: Some(v1::SecurityProfile {
                profile_type: kind.into(),
                localhost_ref: path.to_owned(),
            }),
            capabilities: (name == "localhost").then(|| v1::Capability {
                add_capabilities: vec!["SYS_ADMIN".to_owned()],
                ..v1::Capability::default()
            }),
            ..v1::LinuxContainerSecurityContext::default()
        };
        let mut records = output(pod, secured(pod.config(name, script), security)).await?;
        records.retain(|record| record.starts_with("stdout"));
        let expected = ["stdout F Seccomp:\t2", "stdout F refused"];
        ensure!(records == expected, "{name}: {records:?}");
    }
    let missing = v1::LinuxContainerSecurityContext {
        seccomp: Some(v1::SecurityProfile {
            profile_type: v1::security_profile::ProfileType::Localhost.into(),
            localhost_ref: "/no/such/profile.json".to_owned(),
        }),
        ..v1::LinuxContainerSecurityContext::default()
    };
    let refused = pod
        .create(secured(pod.config("no-profile", "true"), missing))
        .await;
    let error = refused
        .err()
        .context("a profile that is not there is accepted")?;
    ensure!(
        error.code() == Code::InvalidArgument && error.message().contains("/no/such/profile.json"),
        "{error:?}"
    );
    Ok(())
}

async fn limits_are_those_of_the_container(pod: &Pod<'_>) -> Result<()> {
    let script = "setsid sh -c 'sleep 76543 &'; echo up; exec sleep 100000";
    let limits = v1::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 20_000,
        memory_limit_in_bytes: MEMORY,
        oom_score_adj: 500,
        ..v1::LinuxContainerResources::default()
    };
    let id = pod
        .start(limited(pod.config("limited", script), limits))
        .await?;
    eventually(SOON, "the output of the container", || async {
        ensure!(pod.records("limited")? == ["stdout F up"]);
        Ok(())
    })
    .await?;
    // A command in the container is within its limits.
    let read = "cd $(awk '$3 == \"cgroup2\" {print $2; exit}' /proc/mounts); \
                cd .$(sed -n 's/^0:://p' /proc/self/cgroup); cat cpu.max memory.max; \
                pgrep -f 'sleep 7654[3]' | wc -l; cat /proc/$(pgrep -f 'sleep 10000[0]')/oom_score_adj";
    let seen = pod.cri.shell(&id, read).await?;
    let expected = format!("20000 100000\n{MEMORY}\n1\n500");
    ensure!(seen == expected, "{seen:?}");
    let more = v1::LinuxContainerResources {
        cpu_quota: 50_000,
        ..v1::LinuxContainerResources::default()
    };
    pod.cri.update(&id, more).await?;
    let seen = pod.cri.shell(&id, read).await?;
    ensure!(seen.starts_with("50000 100000\n"), "{seen:?}");
    let status = pod.cri.container(&id).await?;
    let linux = status.resources.and_then(|resources| resources.linux);
    ensure!(
        linux
            .as_ref()
            .is_some_and(|linux| linux.cpu_quota == 50_000),
        "{linux:?}"
    );
    let more = v1::LinuxContainerResources {
        memory_limit_in_bytes: 1 << 40,
        ..v1::LinuxContainerResources::default()
    };
    let refused = pod.cri.update(&id, more).await;
    let error = refused.err().context("a TiB is accepted")?;
    ensure!(
        error.message().contains("for its life: make a new pod"),
        "{error:?}"
    );
    // The end of the container is that of a process in a session of its own, whose parent has ended.
    pod.cri.stop(&id, 0).await?;
    let records = output(pod, pod.config("left", "pgrep -f 'sleep 7654[3]' || true")).await?;
    ensure!(
        records.is_empty(),
        "processes of a stopped container: {records:?}"
    );
    Ok(())
}

async fn memory_beyond_the_limit_ends_the_container(pod: &Pod<'_>) -> Result<()> {
    let limits = v1::LinuxContainerResources {
        memory_limit_in_bytes: MEMORY,
        memory_swap_limit_in_bytes: MEMORY,
        ..v1::LinuxContainerResources::default()
    };
    // It keeps what it reads until the end of a line, which never comes.
    let id = pod
        .start(limited(pod.config("large", "exec tail /dev/zero"), limits))
        .await?;
    let status = pod.cri.await_exit(&id, SOON).await?;
    ensure!(
        status.exit_code == 137 && status.reason == "OOMKilled",
        "{status:?}"
    );
    Ok(())
}
