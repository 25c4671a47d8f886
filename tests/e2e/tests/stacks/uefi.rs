//! A guest on a disk that UEFI alone boots: its machine has UEFI without a request, and keeps its variables.
//!
//! Invariant: the guest itself reads and writes variables of the firmware, and the files of the node are
//! compared with what it did.
//! Failure: what the guest lost, or the file that belongs to the wrong user or is left over.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use e2e::{Cri, NodeApi, PodOptions, Stack, await_text, uid};
use nodeapi::v1::{self, run_task_request::Kind};
use serde_json::Value;

use crate::linked_disk::linked;

const BOOT: Duration = Duration::from_secs(300);
const TASK: Duration = Duration::from_secs(240);
const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";
/// Whose variables those of the test are.
const VENDOR: &str = "5c1b0f0e-5d0c-4f2e-9a53-7e7d4b6c2a10";

fn pod(name: &str, stack: &Stack, annotations: &[(&str, &str)]) -> PodOptions {
    let mut pod = PodOptions::named(name, stack);
    pod.memory_mib = Some(256);
    let named = annotations.iter();
    let named = named.map(|(key, value)| (format!("vmlet.dev/{key}"), (*value).to_owned()));
    pod.annotations.extend(named);
    pod
}

struct Machine {
    sandbox: String,
    container: String,
}

async fn boot(cri: &Cri, pod: &PodOptions, image: &str) -> Result<Machine> {
    let (sandbox, container) = Box::pin(cri.boot(pod, image)).await?;
    let console = await_text(&pod.log(0), "VMLET-GUEST-READY", BOOT).await?;
    ensure!(console.contains("VMLET-UEFI"), "{console}");
    cri.await_agent(&container).await?;
    Ok(Machine { sandbox, container })
}

async fn end(cri: &Cri, machine: &Machine) -> Result<()> {
    cri.stop(&machine.container, 60).await?;
    Ok(cri.remove_pod(&machine.sandbox).await?)
}

/// A variable as the guest names it.
fn variable(name: &str) -> String {
    format!("/sys/firmware/efi/efivars/{name}-{VENDOR}")
}

/// Makes a variable whose value is its name. It is kept over restarts, as the attributes before its value say;
/// Linux does not let it be changed.
async fn set(cri: &Cri, machine: &Machine, name: &str) -> Result<()> {
    let write = format!("printf '\\007\\000\\000\\000{name}' >{}", variable(name));
    cri.shell(&machine.container, &write).await.map(drop)
}

async fn has(cri: &Cri, machine: &Machine, name: &str) -> Result<()> {
    let read = format!("tail -c +5 {}", variable(name));
    let value = cri.shell(&machine.container, &read).await?;
    ensure!(value == name, "{value:?}");
    Ok(())
}

/// The user and the mode of a store, and whether a guest has written to it.
fn look(store: &Path) -> Result<(u32, u32, bool)> {
    let found = fs::metadata(store).with_context(|| store.display().to_string())?;
    let template = fs::read("/usr/share/OVMF/OVMF_VARS_4M.fd")?;
    let is_written = fs::read(store)? != template;
    Ok((found.uid(), found.permissions().mode() & 0o777, is_written))
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_machine_keeps_the_variables_of_its_firmware_as_long_as_its_disk() -> Result<()> {
    let stack = Stack::up()?;
    let cri = stack.cri().await?;
    let node = stack.node().await?;
    cri.await_ready().await?;
    let image = stack.var("VMLET_UEFI_IMAGE")?.to_owned();
    cri.pull(&image).await?;
    node.done(&uid(1), VM, linked(&image), TASK).await?;
    let folder = stack.dir().join("state/disks").join(VM);
    let store = folder.join("uefi.fd");
    ensure!(!store.exists(), "it is made by the first start");

    let first = pod("first", &stack, &[("vm-disk", VM)]);
    let machine = boot(&cri, &first, &image).await?;
    is_reported(&stack, &node, &machine).await?;
    set(&cri, &machine, "first").await?;
    has(&cri, &machine, "first").await?;
    let owner = look(&store)?.0;
    ensure!(owner != 0, "the emulator writes to the store as its user");
    // Suspended and resumed.
    node.done(&uid(2), VM, Kind::Save(v1::Save {}), TASK)
        .await?;
    cri.remove_pod(&machine.sandbox).await?;
    ensure!(look(&store)? == (0, 0o600, true), "{:?}", look(&store)?);
    let restored = pod("restored", &stack, &[("vm-disk", VM), ("restore", "true")]);
    let (sandbox, container) = Box::pin(cri.boot(&restored, &image)).await?;
    let machine = Machine { sandbox, container };
    cri.await_agent(&machine.container).await?;
    has(&cri, &machine, "first").await?;
    set(&cri, &machine, "second").await?;
    end(&cri, &machine).await?;
    ensure!(look(&store)? == (0, 0o600, true), "{:?}", look(&store)?);

    let last = pod("last", &stack, &[("vm-disk", VM)]);
    let machine = boot(&cri, &last, &image).await?;
    has(&cri, &machine, "first").await?;
    has(&cri, &machine, "second").await?;
    end(&cri, &machine).await?;
    let delete = Kind::DeleteDisk(v1::DeleteDisk {});
    node.done(&uid(3), VM, delete, TASK).await?;
    ensure!(!folder.exists(), "the store goes with the disk");
    plain_pods_have_a_store(&stack, &cri, &image).await?;
    small_machines_are_refused(&stack, &cri, &image).await?;
    stack.await_clean().await?;
    stack.down()
}

/// The store of a pod without a virtual machine is in the directory of the pod, and goes with it.
async fn plain_pods_have_a_store(stack: &Stack, cri: &Cri, image: &str) -> Result<()> {
    let machine = boot(cri, &pod("plain", stack, &[]), image).await?;
    set(cri, &machine, "plain").await?;
    has(cri, &machine, "plain").await?;
    let all = stores(stack)?;
    let [store] = &all[..] else {
        bail!("{all:?}");
    };
    let found = look(store)?;
    ensure!(found.0 != 0 && found.2, "{found:?}");
    end(cri, &machine).await?;
    ensure!(stores(stack)?.is_empty());
    Ok(())
}

async fn small_machines_are_refused(stack: &Stack, cri: &Cri, image: &str) -> Result<()> {
    let mut small = pod("small", stack, &[]);
    small.memory_mib = Some(128);
    let sandbox = cri.run(small.sandbox()).await?;
    let create = cri.create(&sandbox, small.container(image, 0), small.sandbox());
    let refused = Box::pin(create).await;
    let words = refused.err().context("it has too little memory")?;
    ensure!(words.message().contains("at least 256 MiB"), "{words}");
    ensure!(stores(stack)?.is_empty());
    Ok(cri.remove_pod(&sandbox).await?)
}

/// The stores of pods.
fn stores(stack: &Stack) -> Result<Vec<PathBuf>> {
    let pods = fs::read_dir(stack.dir().join("state/pods"))?;
    let stores = pods.map(|pod| Ok(pod?.path().join("uefi.fd")));
    let stores: Vec<PathBuf> = stores.collect::<Result<_>>()?;
    Ok(stores.into_iter().filter(|store| store.exists()).collect())
}

/// crictl and the node API name the firmware.
async fn is_reported(stack: &Stack, node: &NodeApi, machine: &Machine) -> Result<()> {
    let inspected = stack.crictl(&["inspect", &machine.container])?;
    let inspected: Value = serde_json::from_str(&inspected)?;
    let vm = &inspected["info"]["vm"];
    ensure!(vm["firmware"] == "uefi", "{vm}");
    let machines = node.machines().await?;
    ensure!(
        matches!(&machines[..], [machine] if machine.firmware == "uefi"),
        "{machines:?}"
    );
    Ok(())
}
