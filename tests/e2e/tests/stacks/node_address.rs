//! A guest that is restored from saved memory when its address belongs to another pod.
//!
//! Invariant: it sees its cable pulled and plugged in, so that a client which watches for that asks
//! again; the new address works long before the lease would have been renewed.
//! Failure: the test names the address that did not answer.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Guest, PodOptions, Stack, await_text, eventually, provision, uid};
use nodeapi::v1::{self, run_task_request::Kind};

const BOOT: Duration = Duration::from_secs(300);
const TASK: Duration = Duration::from_secs(180);
const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";

/// What managers of networks do, which the guest does not have: once the cable was out and is in,
/// the client asks.
const WATCH: &str = "read -r nic </run/nics; cd /sys/class/net/$nic; before=$(cat carrier_changes)
    (until [ $(cat carrier_changes) -ge $((before + 2)) ]; do sleep 0.1; done
    kill -USR1 $(pidof udhcpc)) >/dev/null 2>&1 </dev/null &";

fn pod(name: &str, stack: &Stack, restore: bool) -> PodOptions {
    let mut pod = PodOptions::named(name, stack);
    let mut set = |key: &str, value: &str| pod.annotations.insert(key.into(), value.into());
    set("vmlet.dev/vm-disk", VM);
    set("vmlet.dev/restore", &restore.to_string());
    pod
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_resumed_guest_gets_a_new_address_when_its_own_is_taken() -> Result<()> {
    let stack = Stack::up()?;
    let cri = stack.cri().await?;
    let node = stack.node().await?;
    let image = cri.await_image(&stack).await?;
    node.done(&uid(1), VM, provision(&image), TASK).await?;
    let first = pod("before", &stack, false);
    let (sandbox, _) = cri.boot(&first, &image).await?;
    await_text(&first.log(0), "VMLET-GUEST-READY", BOOT).await?;
    eventually(BOOT, "the guest's agent", || async {
        Guest::in_pod(&stack, "before")?.run(&["true"])
    })
    .await?;
    Guest::in_pod(&stack, "before")?.run(&["sh", "-c", WATCH])?;
    let old = cri.ip(&sandbox).await?;
    node.done(&uid(2), VM, Kind::Save(v1::Save {}), TASK)
        .await?;
    cri.stop_pod(&sandbox).await?;
    cri.remove_pod(&sandbox).await?;

    // Another pod has it by now.
    let lease = stack.dir().join("cni/ipam/vmlet").join(&old);
    std::fs::write(&lease, "another\r\neth0")?;
    let second = pod("after", &stack, true);
    let (sandbox, _) = cri.boot(&second, &image).await?;
    let new = cri.ip(&sandbox).await?;
    ensure!(new != old, "{old} was given twice");
    stack.fetch(&format!("http://{new}/"), BOOT).await?;
    let log = std::fs::read_to_string(second.log(0))?;
    ensure!(!log.contains("VMLET-BOOTS"), "it booted: {log}");

    std::fs::remove_file(&lease)?;
    cri.stop_pod(&sandbox).await?;
    cri.remove_pod(&sandbox).await?;
    let delete = Kind::DeleteDisk(v1::DeleteDisk {});
    node.done(&uid(3), VM, delete, TASK).await?;
    stack.await_clean().await?;
    stack.down()
}
