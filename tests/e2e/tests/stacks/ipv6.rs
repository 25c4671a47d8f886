//! Pods with both families, and with IPv6 alone: a real guest on the real plugins.
//!
//! Invariant: one stack; its network configuration is changed between pods, as an administrator
//! would.
//! Failure: the test shows the guest's addresses and routes.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cri, Guest, PodOptions, Stack, await_text, eventually, v1};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::streaming::Forward;

const BOOT: Duration = Duration::from_secs(180);
const FOUR: (&str, &str) = ("10.88.0.0/16", "0.0.0.0/0");
const SIX: (&str, &str) = ("fd00:88::/64", "::/0");

#[tokio::test]
#[ignore = "needs root"]
async fn guests_have_the_families_that_the_plugins_give_their_pods() -> Result<()> {
    let stack = Stack::up()?;
    let cri = stack.cri().await?;
    let image = cri.await_image(&stack).await?;
    both_families(&stack, &cri, &image)
        .await
        .context("both families")?;
    six_alone(&stack, &cri, &image)
        .await
        .context("IPv6 alone")?;
    stack.await_clean().await?;
    stack.down()
}

/// Gives the stack's pods an address of each subnet, with the default route of its family.
fn configure(stack: &Stack, subnets: &[(&str, &str)]) -> Result<()> {
    let file: PathBuf = stack.dir().join("cni/conf/10-vmlet.conflist");
    let mut list: Value = serde_json::from_slice(&std::fs::read(&file)?)?;
    let bridge = &mut list["plugins"][0];
    bridge["ipMasq"] = json!(false);
    let ranges = subnets
        .iter()
        .map(|(subnet, _)| json!([{"subnet": subnet}]));
    let routes = subnets.iter().map(|(_, route)| json!({"dst": route}));
    bridge["ipam"]["ranges"] = ranges.collect();
    bridge["ipam"]["routes"] = routes.collect();
    Ok(std::fs::write(&file, list.to_string())?)
}

/// The addresses of a sandbox in its status: the primary one first.
async fn addresses(cri: &Cri, sandbox: &str) -> Result<Vec<String>> {
    let network = cri.sandbox(sandbox).await?.network.context("no network")?;
    let further = network.additional_ips.into_iter().map(|ip| ip.ip);
    Ok([network.ip].into_iter().chain(further).collect())
}

fn with_dns(pod: &PodOptions) -> v1::PodSandboxConfig {
    v1::PodSandboxConfig {
        dns_config: Some(v1::DnsConfig {
            servers: vec!["fd00:96::a".to_owned()],
            searches: vec!["cluster.local".to_owned()],
            options: Vec::new(),
        }),
        ..pod.sandbox()
    }
}

/// Starts a machine in a sandbox that has it not yet, and returns its announcement.
async fn boot(cri: &Cri, pod: &PodOptions, sandbox: &str, image: &str) -> Result<String> {
    let config = pod.container(image, 0);
    let container = Box::pin(cri.create(sandbox, config, with_dns(pod))).await?;
    cri.start(&container).await?;
    let log = await_text(&pod.log(0), "VMLET-GUEST-READY", BOOT).await?;
    let line = log.lines().find(|line| line.contains("VMLET-GUEST-READY"));
    Ok(line.context("no such line")?.to_owned())
}

async fn both_families(stack: &Stack, cri: &Cri, image: &str) -> Result<()> {
    configure(stack, &[FOUR, SIX])?;
    let pod = PodOptions::named("both", stack);
    let sandbox = cri.run(with_dns(&pod)).await?;
    let ips = addresses(cri, &sandbox).await?;
    let [four, six] = ips.as_slice() else {
        anyhow::bail!("{ips:?}");
    };
    ensure!(
        four.starts_with("10.88.") && six.starts_with("fd00:88::"),
        "{ips:?}"
    );
    let ready = boot(cri, &pod, &sandbox, image).await?;
    // The guest does not wait for a router that may not exist: its page shows when IPv6 is
    // configured.
    ensure!(ready.contains(&format!("ip={four} ")), "{ready}");
    if let Some((_, found)) = ready.split_once("ip6=") {
        ensure!(found.trim() == six, "{ready}");
    }
    let pages = [format!("http://{four}/"), format!("http://[{six}]/")];
    for page in &pages {
        ensure!(stack.fetch(page, BOOT).await?.contains("both"), "{page}");
    }
    let guest = Guest::in_pod(stack, "both")?;
    // An address is there before the rest of its configuration.
    eventually(BOOT, "the whole configuration of the guest", || async {
        check(&guest, six)
    })
    .await?;

    stack.kill("vmlet-tapmanager", Signal::SIGKILL).await?;
    for page in &pages {
        stack.fetch(page, BOOT).await?;
    }
    stack.restart("vmlet-tapmanager")?;
    ensure!(addresses(cri, &sandbox).await? == ips, "other addresses");
    // The guest forgets all of its IPv6 and asks again.
    let again = "kill $(cat /run/dhcp6c.pid); ip -6 addr flush dev eth0; ip link set eth0 down; \
        ip link set eth0 up; /etc/ipv6 >/dev/null 2>&1 </dev/null &";
    guest.run(&["sh", "-c", again])?;
    eventually(BOOT, "the addresses once more", || async {
        check(&guest, six)
    })
    .await?;
    stack.fetch(&pages[1], BOOT).await?;
    Ok(cri.remove_pod(&sandbox).await?)
}

/// The guest has this one IPv6 address, a gateway, a name server.
fn check(guest: &Guest, six: &str) -> Result<()> {
    let addresses = guest.run(&[
        "ip", "-6", "-o", "addr", "show", "dev", "eth0", "scope", "global",
    ])?;
    ensure!(
        addresses.lines().count() == 1 && addresses.contains(&format!("{six}/128")),
        "{addresses}"
    );
    let routes = guest.run(&["ip", "-6", "route"])?;
    ensure!(
        routes.contains("default via fe80:") && routes.contains("fd00:88::/64"),
        "{routes}"
    );
    let names = guest.run(&["cat", "/etc/resolv.conf"])?;
    ensure!(
        names.contains("nameserver fd00:96::a") && names.contains("search cluster.local"),
        "{names}"
    );
    guest
        .run(&["ping", "-6", "-c", "1", "-W", "15", "fd00:88::1"])
        .map(drop)
}

async fn six_alone(stack: &Stack, cri: &Cri, image: &str) -> Result<()> {
    configure(stack, &[SIX])?;
    let mut pod = PodOptions::named("six", stack);
    pod.ports = vec![(8086, 80)];
    let sandbox = cri.run(with_dns(&pod)).await?;
    let ips = addresses(cri, &sandbox).await?;
    ensure!(ips.len() == 1 && ips[0].starts_with("fd00:88::"), "{ips:?}");
    let ready = boot(cri, &pod, &sandbox, image).await?;
    ensure!(
        ready.contains(&format!("ip=none ip6={}", ips[0])),
        "{ready}"
    );
    let page = stack.fetch(&format!("http://[{}]/", ips[0]), BOOT).await?;
    stack
        .fetch("http://[fd00:88::1]:8086/", BOOT)
        .await
        .context("port of the node")?;
    let forward = Forward::start(stack, &sandbox, &["18080:80"])?;
    let forwarded = stack.fetch("http://127.0.0.1:18080/", BOOT).await;
    let forwarded = forwarded.context("port-forward")?;
    ensure!(forwarded == page, "{forwarded} in the place of {page}");
    drop(forward);
    let guest = Guest::in_pod(stack, "six")?;
    eventually(BOOT, "the whole configuration of the guest", || async {
        check(&guest, &ips[0])
    })
    .await?;
    Ok(cri.remove_pod(&sandbox).await?)
}
