//! Pods that boot from a block device.
//!
//! Invariant: an image is written to a device once; what a guest wrote there is in its next pod;
//! one machine has a device.
//! Failure: the test names what was lost, allowed or left.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cri, LoopDevice, PodOptions, REGISTRY, Stack, await_text, v1};
use tonic::Code;

const BOOT: Duration = Duration::from_secs(180);

/// The machine of a pod, with a device as its root disk.
fn machine(pod: &PodOptions, image: &str, device: &Path) -> v1::ContainerConfig {
    let device = v1::Device {
        container_path: "/".to_owned(),
        host_path: device.display().to_string(),
        permissions: "mrw".to_owned(),
    };
    v1::ContainerConfig {
        devices: vec![device],
        ..pod.container(image, 0)
    }
}

async fn create(
    cri: &Cri,
    pod: &PodOptions,
    image: &str,
    device: &Path,
) -> Result<(String, Result<String, tonic::Status>)> {
    let sandbox = cri.run(pod.sandbox()).await?;
    let config = machine(pod, image, device);
    let created = Box::pin(cri.create(&sandbox, config, pod.sandbox())).await;
    Ok((sandbox, created))
}

async fn refused(cri: &Cri, pod: &PodOptions, image: &str, device: &Path) -> Result<String> {
    let (sandbox, created) = create(cri, pod, image, device).await?;
    let status = created.err().context("a device that cannot be used")?;
    ensure!(status.code() == Code::FailedPrecondition, "{status:?}");
    cri.remove_pod(&sandbox).await?;
    Ok(status.message().to_owned())
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_device_gets_the_image_once_and_keeps_what_the_guest_wrote() -> Result<()> {
    let device = LoopDevice::new(96)?;
    let small = LoopDevice::new(32)?;
    let links = tempfile::tempdir()?;
    // kubelet names devices by links.
    let link = links.path().join("claim");
    std::os::unix::fs::symlink(device.path(), &link)?;
    let stack = Stack::up_with_registries()?;
    let cri = stack.cri().await?;
    let image = cri.await_image(&stack).await?;
    let pod = |name: &str| PodOptions::named(name, &stack);

    let first = pod("first");
    let (sandbox, created) = create(&cri, &first, &image, &link).await?;
    let container = created?;
    let head = device.head()?;
    ensure!(head.starts_with("vmlet-root 1 whole sha256:"), "{head}");
    cri.start(&container).await?;
    await_text(&first.log(0), "VMLET-BOOTS 1", BOOT).await?;

    // By whatever path, a device is one device.
    let reported = refused(&cri, &pod("thief"), &image, device.path()).await?;
    ensure!(reported.contains("in use by container"), "{reported}");
    await_text(&first.log(0), "VMLET-GUEST-READY", BOOT).await?;
    cri.stop_pod(&sandbox).await?;
    cri.remove_pod(&sandbox).await?;

    // A mount, or a copy that a killed daemon left behind, keeps machines away for as long as it
    // lasts.
    let claim = device.claim()?;
    let (sandbox, created) = create(&cri, &pod("early"), &image, &link).await?;
    let status = created.err().context("a device that is busy")?;
    ensure!(status.code() == Code::Unavailable, "{status:?}");
    cri.remove_pod(&sandbox).await?;
    drop(claim);

    // The image is there already: no message about it is needed.
    let second = pod("second");
    let (sandbox, created) = create(&cri, &second, "vmlet.dev/none", &link).await?;
    cri.start(&created?).await?;
    await_text(&second.log(0), "VMLET-BOOTS 2", BOOT).await?;
    cri.stop_pod(&sandbox).await?;
    cri.remove_pod(&sandbox).await?;

    // An image that the device has not: what the guest wrote stays.
    let third = pod("third");
    let other = format!("{REGISTRY}/pause:3.9");
    cri.pull(&other).await?;
    let (sandbox, created) = create(&cri, &third, &other, &link).await?;
    cri.start(&created?).await?;
    await_text(&third.log(0), "VMLET-BOOTS 3", BOOT).await?;
    ensure!(device.head()? == head, "the device was written over");
    cri.stop_pod(&sandbox).await?;
    cri.remove_pod(&sandbox).await?;

    // Its owner may decide otherwise.
    let mut fourth = pod("fourth");
    let replace = ("vmlet.dev/root-content".to_owned(), "replace".to_owned());
    fourth.annotations.extend([replace]);
    let (sandbox, created) = create(&cri, &fourth, &other, &link).await?;
    created?;
    let now = device.head()?;
    ensure!(
        now.starts_with("vmlet-root 1 whole sha256:") && now != head,
        "{now}"
    );
    cri.remove_pod(&sandbox).await?;

    let reported = refused(&cri, &pod("small"), &image, small.path()).await?;
    ensure!(
        reported.contains("33554432") && reported.contains("68157440"),
        "{reported}"
    );
    let reported = refused(&cri, &pod("empty"), "vmlet.dev/none", small.path()).await?;
    ensure!(reported.contains("is empty"), "{reported}");
    device.write(b"another's data")?;
    let reported = refused(&cri, &pod("foreign"), &image, device.path()).await?;
    ensure!(reported.contains("holds data"), "{reported}");
    ensure!(
        device.head()?.starts_with("another's data"),
        "it was written over"
    );
    stack.await_clean().await?;
    stack.down()
}
