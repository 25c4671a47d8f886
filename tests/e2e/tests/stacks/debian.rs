//! A real distribution in a pod: the image of `cargo xtask guest --debian`, with cloud-init, systemd
//! and the QEMU guest agent as Debian delivers them.
//!
//! Invariant: what a guest found is read from its serial console; the guest runs no program of
//! ours. A case is a function with a guest of its own: annotations, lines of user data, and facts
//! ([`guest::Debian`]).
//! Failure: the fact that differs, or the end of the console.

mod guest;

use anyhow::{Result, ensure};
use e2e::Stack;

use self::guest::{Debian, MOUNTED, Wanted};

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

#[tokio::test]
#[ignore = "needs root"]
async fn cloud_init_applies_the_guest_data_of_a_pod() -> Result<()> {
    let stack = Stack::up()?;
    let addresses = "ip -o -4 address show scope global | awk '{print $4}'";
    let leases = "find /run/systemd/netif/leases -type f | wc -l";
    let annotations = [
        ("vmlet.dev/ssh-keys", KEY),
        // Commands go to the agent that the image has.
        ("vmlet.dev/guest-agent", "off"),
    ];
    let facts = [&FACTS[..], &[("address", addresses), ("leases", leases)]].concat();
    let debian = Debian::boot(&stack, "seeded", &wanted(&annotations, &facts)).await?;
    let ip = debian.ip().await?;
    let address = format!("{ip}/16");
    let expected = [
        ("source", "nocloud"),
        ("address", &address),
        ("leases", "0"),
    ];
    check(&debian, "seeded", &expected).await?;

    let state = "systemctl is-system-running --wait || systemctl --failed --no-legend";
    let state = debian.run(state).await?;
    ensure!(state == "running", "systemd is {state}");
    let unit = debian.run("cat /proc/self/cgroup").await?;
    ensure!(
        unit.ends_with("/qemu-guest-agent.service"),
        "a command runs in {unit}"
    );
    debian.end().await?;
    stack.await_clean().await?;
    stack.down()
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
        let found = facts.of(name)?;
        ensure!(found == *expected, "{name} is {found:?}, not {expected:?}");
    }
    Ok(())
}
