//! The memory of a real QEMU is saved while its disk goes over to another file, and resumed from.
//!
//! Invariant: the guest sits in the firmware, and runs after each request as it did before.
//! Failure: the test names the file, or prints what became of the guest.

use std::path::{Path, PathBuf};

use libvirt::harness::Libvirtd;
use libvirt::{Error, Hypervisor, Libvirt, MemorySwitch, Pause, Power, Settings, is_saved_memory};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use uuid::Uuid;

use super::switch::{allow, begun, create, disks, root, xml};

async fn power(hv: &Libvirt, id: Uuid) -> Option<Power> {
    hv.power(id).await.unwrap()
}

fn to(folder: &Path, name: &str, runs: bool) -> MemorySwitch {
    let file = |extension: &str| folder.join(name).with_extension(extension);
    MemorySwitch {
        disk: file("qcow2"),
        memory: file("save"),
        runs,
    }
}

/// The description of the domain with another root disk, which is based on the first one.
fn reverted(id: Uuid, folder: &Path, name: &str) -> String {
    let first = folder.join("root.qcow2");
    let placeholder = PathBuf::from("/FIRST");
    let description = xml(id, folder, &[placeholder]).replace("root.qcow2", name);
    description.replace("/FIRST", first.to_str().unwrap())
}

#[tokio::test]
#[ignore = "needs root"]
async fn memory_is_of_the_moment_of_its_switch_and_can_be_resumed_again() {
    let mut libvirtd = Libvirtd::start().unwrap();
    let hv = libvirtd.connect(Settings::default()).await.unwrap();
    let folder = disks(&libvirtd);
    let file = |name: &str| folder.join(name);
    create(&file("root.qcow2"), None);
    let id = Uuid::new_v4();
    hv.define(xml(id, &folder, &[])).await.unwrap();
    hv.start(id).await.unwrap();

    let absent = hv
        .switch_root_with_memory(id, to(&folder, "absent", true))
        .await;
    assert!(matches!(absent, Err(Error::Refused { .. })), "{absent:?}");
    assert!(!file("absent.save").exists(), "memory is left");
    let mut below = file("root.qcow2");
    for (name, runs) in [("one", true), ("two", false)] {
        let to = to(&folder, name, runs);
        create(&to.disk, Some(&below));
        hv.switch_root_with_memory(id, to.clone()).await.unwrap();
        assert_eq!(root(&hv, id).await.as_ref(), Some(&to.disk));
        assert!(is_saved_memory(&to.memory), "{name}");
        assert_eq!(power(&hv, id).await, Some(Power::On), "{name}");
        below = to.disk;
    }

    assert!(!hv.end_save(id).await.unwrap(), "nothing is written");
    // libvirtd is killed while the memory is written: the guest runs on, on the file that it had.
    let cut_short = to(&folder, "three", true);
    create(&cut_short.disk, Some(&below));
    let status = libvirtd.dir().join("run/libvirt/qemu/switched.xml");
    let emulator = Pid::from_raw(libvirtd.emulators()[0]);
    kill(emulator, Signal::SIGSTOP).unwrap();
    let other = hv.clone();
    let switch = cut_short.clone();
    let request = tokio::spawn(async move { other.switch_root_with_memory(id, switch).await });
    begun(&status).await;
    libvirtd.kill();
    kill(emulator, Signal::SIGCONT).unwrap();
    assert!(request.await.unwrap().is_err());
    libvirtd.launch().unwrap();
    hv.connected().await;
    assert_eq!(root(&hv, id).await, Some(below));
    assert_eq!(power(&hv, id).await, Some(Power::On));
    assert!(!is_saved_memory(&cut_short.memory));
    assert!(!hv.end_save(id).await.unwrap());
    hv.destroy(id).await.unwrap();
    assert!(!hv.end_save(id).await.unwrap(), "there is no emulator");

    allow(&file("root.qcow2"), 0o644);
    for name in ["again.qcow2", "once-more.qcow2"] {
        create(&file(name), Some(&file("root.qcow2")));
        let description = reverted(id, &folder, name);
        let never = std::future::pending();
        let restored = hv.restore(description, file("one.save"), never);
        restored.await.unwrap();
        assert_eq!(
            power(&hv, id).await,
            Some(Power::Paused(Pause::Asked)),
            "{name}"
        );
        hv.resume(id).await.unwrap();
        assert_eq!(power(&hv, id).await, Some(Power::On));
        assert_eq!(root(&hv, id).await, Some(file(name)));
        hv.destroy(id).await.unwrap();
        assert!(is_saved_memory(&file("one.save")), "it is only read");
    }
    hv.undefine(id).await.unwrap();
}
