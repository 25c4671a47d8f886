//! A real distribution in a pod: the image of `cargo xtask guest --debian`, with cloud-init, systemd
//! and the QEMU guest agent as Debian delivers them.
//!
//! Invariant: what a guest found is read from its serial console; the guest runs no program of
//! ours, but in the test of snapshots. A case is a function with a guest of its own: annotations, lines of user data, and facts
//! ([`guest::Debian`]).
//! Failure: the fact that differs, or the end of the console.

mod guest;
mod links;
mod quiesce;
mod texts;

use anyhow::{Context as _, Result, ensure};
use e2e::Stack;

use self::guest::{Debian, MOUNTED, Wanted};
use self::links::LINKS;

const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGRlYmlhbi1vbi12bWxldC1pbi1hLXBvZC1vbmUx one";
/// A value that a shell would take apart.
const GREETING: &str = "it's \"$HOME\" & more";

/// What each guest prints, whatever its cloud-init disk is like.
const FACTS: [(&str, &str); 10] = [
    ("file", "cat /opt/written"),
    ("keys", "cat /home/debian/.ssh/authorized_keys"),
    ("host", "hostname"),
    ("source", "cloud-id"),
    ("host-keys", "ls /etc/ssh/*_key.pub | wc -l"),
    (
        "environment",
        ". /etc/cloud/environment; printf %s \"$GREETING\"",
    ),
    ("mounted", "cat /etc/demo/greeting"),
    ("shared", "findmnt -n -o FSTYPE,OPTIONS /etc/demo"),
    ("written", "echo kept >/srv/data/file; cat /srv/data/file"),
    (
        "router",
        "ip -4 route show default | awk '{print $3; exit}'",
    ),
];

/// What a guest has of its pod, as lines of shell that print `yes`.
const HAS: [(&str, &str); 5] = [
    (
        "a ConfigMap",
        "grep -q 'hello from a ConfigMap' /etc/demo/greeting",
    ),
    ("a directory", "grep -q kept /srv/data/file"),
    (
        "environment",
        "grep -q '^export GREETING=\\|^GREETING=' /etc/cloud/environment",
    ),
    (
        "a file of cloud-init",
        "grep -q 'by cloud-init' /opt/written",
    ),
    ("a disk in a file", "grep -q kept /srv/claim/file"),
];

#[tokio::test]
#[ignore = "needs root"]
async fn a_guest_has_all_of_its_pod_by_cloud_init_and_keeps_it() -> Result<()> {
    let stack = Stack::up()?;
    links::install(&stack)?;
    let disks = r#"[{"mountPath": "/claims/data", "devicePath": "/dev/claim", "size": "64Mi"}]"#;
    let annotations = [
        ("vmlet.dev/ssh-keys", KEY),
        // Commands go to the agent that the image has.
        ("vmlet.dev/guest-agent", "off"),
        ("vmlet.dev/file-disks", disks),
    ];
    let leases = "find /run/systemd/netif/leases -type f | wc -l";
    let claim = "mkfs.ext4 -q /dev/disk/by-id/virtio-claim && mkdir -p /srv/claim && \
                 echo '/dev/disk/by-id/virtio-claim /srv/claim ext4 defaults 0 0' >>/etc/fstab && \
                 mount /srv/claim && echo kept >/srv/claim/file && sync && echo made";
    let facts = [&FACTS[..], &[("leases", leases), ("claim", claim)]].concat();
    let mut debian = Debian::boot(&stack, "seeded", &wanted(&annotations, &facts)).await?;
    let ip = debian.ip().await?;
    let expected = [("source", "nocloud"), ("leases", "0"), ("claim", "made")];
    check(&debian, "seeded", &expected).await?;

    let state = "systemctl is-system-running --wait || systemctl --failed --no-legend";
    let state = debian.run(state).await?;
    ensure!(state == "running", "systemd is {state}");
    let unit = debian.run("cat /proc/self/cgroup").await?;
    ensure!(
        unit.ends_with("/qemu-guest-agent.service"),
        "a command runs in {unit}"
    );
    has_all(&debian, &ip).await.context("at first")?;
    debian.crash(&stack).await?;
    has_all(&debian, &ip).await.context("after kill -9")?;
    debian
        .update("later")
        .await
        .context("a changed ConfigMap")?;
    debian.update(MOUNTED[2]).await?;
    debian.restart().await?;
    has_all(&debian, &ip).await.context("after a restart")?;
    debian.end().await?;
    stack.await_clean().await?;
    stack.down()
}

/// Three NICs with their addresses and MTUs, and everything else.
async fn has_all(debian: &Debian, ip: &str) -> Result<()> {
    for (what, line) in HAS {
        let answer = debian.run(&format!("{line} && echo yes")).await?;
        ensure!(answer == "yes", "{what}: {answer}");
    }
    let addresses = "ip -o -4 address show scope global | awk '{print $4}' | sort";
    let addresses = debian.run(addresses).await?;
    let mut wanted = vec![format!("{ip}/16")];
    wanted.extend(LINKS.map(|(_, subnet, _)| format!("{subnet}.2/24")));
    wanted.sort();
    let found: Vec<_> = addresses.lines().collect();
    ensure!(found == wanted, "{addresses}");
    for (_, subnet, mtu) in LINKS {
        let link = format!("ip -o -4 address show | awk '$4 == \"{subnet}.2/24\" {{print $2}}'");
        let found = debian
            .run(&format!("cat /sys/class/net/$({link})/mtu"))
            .await?;
        ensure!(found == mtu.to_string(), "{subnet} has an MTU of {found}");
        debian.run(&format!("ping -c 1 -W 15 {subnet}.1")).await?;
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs root"]
async fn cloud_init_reads_a_config_drive_and_uses_dhcp() -> Result<()> {
    let stack = Stack::up()?;
    let annotations = [
        ("vmlet.dev/ssh-keys", KEY),
        ("vmlet.dev/guest-agent", "off"),
        ("vmlet.dev/cloud-init-image-type", "configdrive"),
        ("vmlet.dev/force-dhcp", "true"),
    ];
    let lease = "sed -n 's/^ADDRESS=//p' /run/systemd/netif/leases/*";
    let facts = [&FACTS[..], &[("lease", lease)]].concat();
    let debian = Debian::boot(&stack, "driven", &wanted(&annotations, &facts)).await?;
    let ip = debian.ip().await?;
    check(
        &debian,
        "driven",
        &[("source", "configdrive"), ("lease", &ip)],
    )
    .await?;
    debian.end().await?;
    stack.await_clean().await?;
    stack.down()
}

fn wanted<'a>(
    annotations: &'a [(&'a str, &'a str)],
    facts: &'a [(&'a str, &'a str)],
) -> Wanted<'a> {
    Wanted {
        annotations,
        environment: &[("GREETING", GREETING)],
        files: &[("/opt/written", "by cloud-init")],
        facts,
    }
}

/// Compares what the guest printed.
async fn check(debian: &Debian, host: &str, more: &[(&str, &str)]) -> Result<()> {
    let facts = debian.facts().await?;
    let [_, _, mounted] = MOUNTED;
    let all = [
        ("file", "by cloud-init"),
        ("keys", KEY),
        ("host", host),
        ("host-keys", "1"),
        ("environment", GREETING),
        ("mounted", mounted),
        ("shared", "virtiofs ro,relatime"),
        ("written", "kept"),
        ("router", "10.88.0.1"),
    ];
    let kept = debian.shared("file")?;
    ensure!(kept == "kept\n", "on the node: {kept}");
    for (name, expected) in all.iter().chain(more) {
        let found = facts.value(name)?;
        ensure!(found == *expected, "{name} is {found:?}, not {expected:?}");
    }
    Ok(())
}
