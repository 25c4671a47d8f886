//! Networks with real guests: hostile ones, and the plugins that clusters use.
//!
//! Invariant: guests get their orders by the QEMU guest agent; what gets out of a pod is counted on
//! the node's bridge, before any host there could act on it.
//! Failure: the guest's own message, or the counters.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use e2e::{Cri, PodOptions, Stack, await_text, eventually, program};
use serde_json::{Value, json};

const BOOT: Duration = Duration::from_secs(180);

/// Starts a DHCP server in a guest; [`END_OF_SERVER`] prints what it did.
const SERVER: &str = "mkdir -p /run/d; : >/run/d/leases; printf 'interface %s\\nstart 10.88.99.50\\n\
    end 10.88.99.60\\nlease_file /run/d/leases\\npidfile /run/d/pid\\n' $nic >/run/d/conf; \
    udhcpd -f /run/d/conf >/run/d/log 2>&1 & sleep 1; kill -0 $!";
const END_OF_SERVER: &str = "cat /run/d/log; kill $(cat /run/d/pid)";

/// Asks all hosts from fe80::1, which is the only link-local address then and is in use at once.
const FOREIGN_LINK_LOCAL: &str = "echo 0 >/proc/sys/net/ipv6/conf/$nic/accept_dad; \
    ip -6 addr flush dev $nic scope link; ip -6 addr add fe80::1/64 dev $nic; \
    ping6 -c 1 -W 1 -I $nic ff02::1";

/// What no guest may send, by the comments of the rules that count it.
const LIES: [&str; 6] = [
    "another MAC",
    "ARP for another",
    "another address",
    "DHCP server",
    "link-local",
    "another link-local address",
];

/// Gives orders to the agent of a guest.
struct Guest<'a> {
    stack: &'a Stack,
    domain: String,
    /// What each order begins with.
    names: String,
}

impl Guest<'_> {
    /// Runs a shell command; its exit code, and what it printed.
    async fn order(&self, command: &str) -> Result<(i64, String)> {
        let script = format!("{}; {{ {command}; }} 2>&1", self.names);
        let start = json!({"execute": "guest-exec", "arguments": {
            "path": "/bin/sh", "arg": ["-c", script], "env": ["PATH=/bin:/sbin"], "capture-output": true,
        }});
        let pid =
            eventually(BOOT, "the guest's agent", || async { self.agent(&start) }).await?["pid"]
                .clone();
        let ask = json!({"execute": "guest-exec-status", "arguments": {"pid": pid}});
        let answer = eventually(BOOT, &format!("the end of {command:?}"), || async {
            let answer = self.agent(&ask)?;
            ensure!(answer["exited"] == true, "it runs");
            Ok(answer)
        })
        .await?;
        let code = answer["exitcode"].as_i64().context("no exit code")?;
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(answer["out-data"].as_str().unwrap_or_default())?;
        Ok((code, String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Runs a command that must succeed, or fail.
    async fn expect(&self, command: &str, success: bool) -> Result<String> {
        let (code, words) = self.order(command).await?;
        ensure!((code == 0) == success, "{command}: {code}: {words}");
        Ok(words)
    }

    fn agent(&self, request: &Value) -> Result<Value> {
        let socket = self.stack.dir().join("libvirt/sock/libvirt-sock");
        let uri = format!("qemu+unix:///system?socket={}", socket.display());
        let mut virsh = std::process::Command::new("virsh");
        virsh.args([
            "-c",
            &uri,
            "qemu-agent-command",
            &self.domain,
            &request.to_string(),
        ]);
        let output = program::output(&mut virsh)?;
        let words = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "virsh: {words}");
        let mut answer: Value = serde_json::from_slice(&output.stdout)?;
        Ok(answer["return"].take())
    }
}

async fn boot<'a>(stack: &'a Stack, cri: &Cri, pod: &PodOptions) -> Result<(String, Guest<'a>)> {
    let (sandbox, container) = Box::pin(cri.boot(pod, stack.image()?)).await?;
    await_text(&pod.log(0), "VMLET-GUEST-READY", BOOT).await?;
    let mut guest = Guest {
        stack,
        domain: format!("vmlet-{}", &container[..20]),
        names: "true".to_owned(),
    };
    let ask = "nic=$(ls /sys/class/net | grep -v lo | head -1); echo nic=$nic; \
               echo gw=$(ip route | awk '/^default/ {print $3}'); echo mac=$(cat /sys/class/net/$nic/address)";
    guest.names = guest.expect(ask, true).await?.trim().replace('\n', "; ");
    Ok((sandbox, guest))
}

fn node(stack: &Stack, command: &str) -> Result<String> {
    let output = program::output(stack.command("sh").args(["-ec", command]))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command}: {text}{words}");
    Ok(text)
}

/// Counts on the pods' bridge the frames of `guest` (its address), and forbidden frames.
fn spy(stack: &Stack, guest: &str) -> Result<()> {
    let rules = format!(
        "table bridge spy {{ chain seen {{ type filter hook prerouting priority -300; \
         ip saddr {guest} counter comment \"honest\"; \
         ether saddr 02:00:00:00:00:66 counter comment \"another MAC\"; \
         arp saddr ip 10.88.99.99 counter comment \"ARP for another\"; \
         ip saddr 10.88.99.99 counter comment \"another address\"; \
         udp sport 67 counter comment \"DHCP server\"; \
         ip saddr {guest} ip daddr 169.254.0.0/16 counter comment \"link-local\"; \
         ip6 saddr fe80::1 icmpv6 type != mld2-listener-report counter comment \"another \
             link-local address\";\n}}\n}}"
    );
    node(stack, &format!("nft '{rules}'")).map(drop)
}

/// Packets by comment.
fn counted(stack: &Stack, comment: &str) -> Result<u64> {
    let rules = node(stack, "nft list table bridge spy")?;
    let line = rules
        .lines()
        .find(|line| line.contains(&format!("\"{comment}\"")));
    let words = line.context("no such rule")?.split(' ');
    let count = words.skip_while(|word| *word != "packets").nth(1);
    Ok(count.context("no counter")?.parse()?)
}

#[tokio::test]
#[ignore = "needs root"]
async fn frames_of_a_hostile_guest_are_dropped() -> Result<()> {
    let stack = Stack::up()?;
    let cri = stack.cri().await?;
    cri.await_ready().await?;
    cri.pull(stack.image()?).await?;
    let pod = PodOptions::named("hostile", &stack);
    let (sandbox, guest) = boot(&stack, &cri, &pod).await?;
    let ip = cri.ip(&sandbox).await?;
    spy(&stack, &ip)?;
    guest.expect("ping -c 1 -W 15 $gw", true).await?;

    guest
        .expect("ip addr add 10.88.99.99/16 dev $nic", true)
        .await?;
    guest
        .expect("ping -c 2 -W 1 -I 10.88.99.99 $gw", false)
        .await?;
    guest
        .order("arping -U -c 2 -w 2 -I $nic -s 10.88.99.99 10.88.99.99")
        .await?;
    guest
        .expect("arping -c 2 -w 2 -I $nic -s 10.88.99.99 $gw", false)
        .await?;
    guest
        .expect("ip addr del 10.88.99.99/16 dev $nic", true)
        .await?;
    // The address that the namespace has for our server, and whatever else it listens on.
    guest
        .expect("ip route add 169.254.254.1 dev $nic", true)
        .await?;
    guest.expect("ping -c 2 -W 1 169.254.254.1", false).await?;
    guest
        .expect("nc -w 2 169.254.254.1 22 </dev/null", false)
        .await?;
    guest.order(FOREIGN_LINK_LOCAL).await?;

    // A server, and a client that requests a lease from it.
    guest.expect(SERVER, true).await?;
    let questions = node(
        &stack,
        "! busybox udhcpc -i cni0 -f -n -q -t 3 -T 1 -s /bin/true 2>&1",
    )?;
    ensure!(questions.contains("no lease"), "{questions}");
    guest.expect(END_OF_SERVER, true).await?;

    let change = |mac: &str| {
        format!(
            "ip link set $nic down; ip link set $nic address {mac}; ip link set $nic up; ip route \
             add default via $gw"
        )
    };
    guest.expect(&change("02:00:00:00:00:66"), true).await?;
    guest.expect("ping -c 2 -W 1 $gw", false).await?;
    guest.expect(&change("$mac"), true).await?;
    guest.expect("ping -c 1 -W 15 $gw", true).await?;
    stack.fetch(&format!("http://{ip}/"), BOOT).await?;

    ensure!(counted(&stack, "honest")? > 0, "nothing is counted");
    for lie in LIES {
        ensure!(counted(&stack, lie)? == 0, "{lie} got out");
    }

    let mut open = PodOptions::named("router", &stack);
    open.annotations = annotations(&[("vmlet.dev.protected/allow-spoofing", "perhaps")]);
    let refused = cri
        .run(open.sandbox())
        .await
        .err()
        .context("it was taken")?;
    ensure!(refused.message().contains("allow-spoofing"), "{refused:?}");
    open.annotations = annotations(&[("vmlet.dev.protected/allow-spoofing", "true")]);
    let (other, router) = boot(&stack, &cri, &open).await?;
    router
        .expect("ip addr add 10.88.99.99/16 dev $nic", true)
        .await?;
    router
        .expect("ping -c 1 -W 15 -I 10.88.99.99 $gw", true)
        .await?;
    // What the counters did not see before is what they see of a guest that may do it.
    router
        .order("arping -U -c 2 -w 2 -I $nic -s 10.88.99.99 10.88.99.99")
        .await?;
    offer_a_lease(&stack, &router).await?;
    // An address that the node has, so that the packet is for the node and leaves the pod: that of the
    // pod's own server ends in the namespace of the pod.
    node(&stack, "ip addr add 169.254.7.7/32 dev cni0")?;
    router
        .order(&format!(
            "ip addr add {ip}/32 dev $nic; ip route add 169.254.7.7 dev $nic; \
             ping -c 2 -W 1 -I {ip} 169.254.7.7"
        ))
        .await?;
    router.order(FOREIGN_LINK_LOCAL).await?;
    router.expect(&change("02:00:00:00:00:66"), true).await?;
    router.order("ping -c 2 -W 1 $gw").await?;
    for lie in LIES {
        ensure!(counted(&stack, lie)? > 0, "{lie} is not counted");
    }
    for sandbox in [sandbox, other] {
        cri.remove_pod(&sandbox).await?;
    }
    stack.await_clean().await?;
    stack.down()
}

/// A client on the node gets a lease of the guest: the server works that no client of the hostile guest
/// has found.
async fn offer_a_lease(stack: &Stack, router: &Guest<'_>) -> Result<()> {
    router.expect(SERVER, true).await?;
    let lease = node(
        stack,
        "busybox udhcpc -i cni0 -f -n -q -t 10 -T 3 -s /bin/true 2>&1",
    );
    let log = router.expect(END_OF_SERVER, true).await?;
    lease
        .map(drop)
        .with_context(|| format!("the server: {log}"))
}

fn annotations(pairs: &[(&str, &str)]) -> std::collections::BTreeMap<String, String> {
    let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(own).collect()
}

/// Makes these the plugins of the next pod.
fn configure(stack: &Stack, plugins: &Value) -> Result<()> {
    let list = json!({"cniVersion": "1.0.0", "name": "vmlet", "plugins": plugins});
    let file = stack.dir().join("cni/conf/10-vmlet.conflist");
    Ok(std::fs::write(file, list.to_string())?)
}

fn host_local(stack: &Stack, subnet: &str) -> Value {
    json!({
        "type": "host-local", "dataDir": stack.dir().join("cni/ipam"),
        "ranges": [[{"subnet": subnet, "rangeStart": subnet.replace(".0/24", ".20")}]],
        "routes": [{"dst": "0.0.0.0/0"}]
    })
}

#[tokio::test]
#[ignore = "needs root"]
async fn guests_live_behind_the_links_of_other_plugins() -> Result<()> {
    let stack = Stack::up()?;
    let cri = stack.cri().await?;
    cri.await_ready().await?;
    cri.pull(stack.image()?).await?;

    let ipam = host_local(&stack, "10.67.0.0/24");
    configure(
        &stack,
        &json!([{"type": "ptp", "ipMasq": true, "ipam": ipam}]),
    )?;
    let pod = PodOptions::named("routed", &stack);
    let (sandbox, guest) = boot(&stack, &cri, &pod).await?;
    let ip = cri.ip(&sandbox).await?;
    stack.fetch(&format!("http://{ip}/"), BOOT).await?;
    guest
        .expect("ping -c 1 -W 15 10.67.0.1; ip route", true)
        .await?;
    cri.remove_pod(&sandbox).await?;

    let ipam = host_local(&stack, "10.68.0.0/24");
    let bridge =
        json!({"type": "bridge", "bridge": "cni0", "isGateway": true, "mtu": 9000, "ipam": ipam});
    let limits = json!({"type": "bandwidth", "capabilities": {"bandwidth": true}});
    configure(&stack, &json!([bridge, limits]))?;
    let mut pod = PodOptions::named("large", &stack);
    pod.annotations = annotations(&[
        ("kubernetes.io/ingress-bandwidth", "20M"),
        ("kubernetes.io/egress-bandwidth", "10M"),
    ]);
    let (sandbox, guest) = boot(&stack, &cri, &pod).await?;
    let links = guest.expect("ip link", true).await?;
    ensure!(links.contains("mtu 9000"), "{links}");
    guest
        .expect("ping -c 1 -W 15 -s 8972 10.68.0.1", true)
        .await?;
    let shaped = node(&stack, "tc qdisc")?;
    for rate in ["rate 20Mbit", "rate 10Mbit"] {
        ensure!(shaped.contains(rate), "{rate}: {shaped}");
    }
    cri.remove_pod(&sandbox).await?;
    node(&stack, "ip link del cni0")?;

    // The parent itself never meets its macvlans, so the node gets one, too.
    let macvlan = "ip link add spy0 link node0 type macvlan mode bridge && ip link set spy0 up \
                   && ip addr add 10.69.0.1/24 dev spy0";
    node(&stack, macvlan)?;
    let ipam = host_local(&stack, "10.69.0.0/24");
    let plugin = json!({"type": "macvlan", "master": "node0", "mode": "bridge", "ipam": ipam});
    configure(&stack, &json!([plugin]))?;
    let pod = PodOptions::named("shared", &stack);
    let (sandbox, guest) = boot(&stack, &cri, &pod).await?;
    let ip = cri.ip(&sandbox).await?;
    stack.fetch(&format!("http://{ip}/"), BOOT).await?;
    guest.expect("ping -c 1 -W 15 10.69.0.1", true).await?;
    cri.remove_pod(&sandbox).await?;
    node(&stack, "ip link del spy0")?;

    configure(&stack, &json!([{"type": "ipvlan", "master": "node0"}]))?;
    let pod = PodOptions::named("impossible", &stack);
    let refused = cri.run(pod.sandbox()).await.err().context("it was taken")?;
    ensure!(
        refused.message().contains("use bridge, ptp, macvlan"),
        "{refused:?}"
    );
    stack.await_clean().await?;
    stack.down()
}
