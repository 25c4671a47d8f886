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

use self::guest::{Debian, Wanted};

const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGRlYmlhbi1vbi12bWxldC1pbi1hLXBvZC1vbmUx one";

#[tokio::test]
#[ignore = "needs root"]
async fn cloud_init_applies_the_guest_data_of_a_pod() -> Result<()> {
    let stack = Stack::up()?;
    let wanted = Wanted {
        annotations: &[
            ("vmlet.dev/ssh-keys", KEY),
            // Commands go to the agent that the image has.
            ("vmlet.dev/guest-agent", "off"),
        ],
        files: &[("/opt/written", "by cloud-init")],
        facts: &[
            ("file", "cat /opt/written"),
            ("keys", "cat /home/debian/.ssh/authorized_keys"),
            ("host", "hostname"),
            (
                "lease",
                "sed -n 's/^ADDRESS=//p' /run/systemd/netif/leases/*",
            ),
            (
                "address",
                "ip -o -4 address show scope global dynamic | awk '{print $4}'",
            ),
            ("source", "cloud-id"),
            ("host-keys", "ls /etc/ssh/*_key.pub | wc -l"),
        ],
    };
    let debian = Debian::boot(&stack, "seeded", &wanted).await?;
    let facts = debian.facts().await?;
    let ip = debian.ip().await?;
    for (name, expected) in [
        ("file", "by cloud-init"),
        ("keys", KEY),
        ("host", "seeded"),
        ("lease", &ip),
        ("address", &format!("{ip}/16")),
        ("source", "nocloud"),
        ("host-keys", "1"),
    ] {
        let found = facts.of(name)?;
        ensure!(found == expected, "{name} is {found:?}, not {expected:?}");
    }

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
