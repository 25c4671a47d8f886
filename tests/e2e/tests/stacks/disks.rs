//! Disks as the guest sees them: the size of its root disk, and devices of the node beside it.
//!
//! Invariant: sizes, names and bytes are read in the guest, and compared with the node's.
//! Failure: what the guest sees, or the node's device has, that differs.

use anyhow::{Context, Result, ensure};
use e2e::{Cri, LoopDevice, PodOptions, Stack, program, v1};
use tonic::Code;

/// The size of the test image's disk.
const IMAGE: u64 = 64 << 20;
/// A size that the image does not have.
const LARGE: u64 = 200 << 20;
const MIB: usize = 1 << 20;

fn sized(name: &str, size: &str, stack: &Stack) -> PodOptions {
    let mut pod = PodOptions::named(name, stack);
    let size = ("vmlet.dev/root-volume-size".to_owned(), size.to_owned());
    pod.annotations = [size].into();
    pod
}

fn device(path: &str, device: &LoopDevice, permissions: &str) -> v1::Device {
    v1::Device {
        container_path: path.to_owned(),
        host_path: device.path().display().to_string(),
        permissions: permissions.to_owned(),
    }
}

/// What the guest knows of a disk: bytes, whether it is read-only, serial number.
async fn disk(cri: &Cri, id: &str, name: &str) -> Result<(u64, bool, String)> {
    let line = format!("cd /sys/block/{name} && cat size ro && cat serial");
    let reported = cri.shell(id, &line).await?;
    let mut lines = reported.lines();
    let sectors: u64 = lines.next().context("size")?.parse()?;
    let is_read_only = lines.next() == Some("1");
    Ok((
        sectors * 512,
        is_read_only,
        lines.next().unwrap_or_default().to_owned(),
    ))
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_guest_sees_a_root_disk_of_the_wanted_size_and_its_devices_in_order() -> Result<()> {
    let data = LoopDevice::new(16)?;
    let fixed = LoopDevice::new(8)?;
    fixed.write(b"as it was")?;
    let stack = Stack::up()?;
    let cri = stack.cri().await?;
    let image = cri.await_image(&stack).await?;
    nonsense(&stack, &cri, &image).await?;

    // Less than the image has is as much as the image has.
    let small = sized("small", "1Mi", &stack);
    let small_sandbox = cri.run(small.sandbox()).await?;
    let reader = v1::ContainerConfig {
        devices: vec![device("/dev/fixed", &fixed, "mr")],
        ..small.container(&image, 0)
    };
    let small = Box::pin(cri.create(&small_sandbox, reader, small.sandbox())).await?;
    cri.start(&small).await?;
    let mut large = sized("large", "200Mi", &stack);
    let copied = ("vmlet.dev/fast-deploy".to_owned(), "direct".to_owned());
    large.annotations.extend([copied]);
    let sandbox = cri.run(large.sandbox()).await?;
    let config = |attempt| v1::ContainerConfig {
        // Not in the order of their names or sizes, nor of the devices' numbers.
        devices: vec![
            device("/dev/fixed", &fixed, "mr"),
            device("/dev/a-data", &data, "mrw"),
        ],
        ..large.container(&image, attempt)
    };
    let first = Box::pin(cri.create(&sandbox, config(0), large.sandbox())).await?;
    for (pod, is_based) in [(&sandbox, false), (&small_sandbox, true)] {
        let base = base_of(&stack, pod)?;
        ensure!(base.is_some() == is_based, "{base:?}");
    }
    cri.start(&first).await?;
    cri.await_agent(&first).await?;
    let root = disk(&cri, &first, "vda").await?;
    ensure!(root == (LARGE, false, String::new()), "{root:?}");
    devices(&cri, &first, &data, &fixed).await?;
    no_writer_beside_readers(&stack, &cri, &image, &fixed).await?;
    let end = "echo at the end | dd of=/dev/vda bs=512 seek=$(($(cat /sys/block/vda/size) - 1)) \
        conv=fsync";
    cri.shell(&first, end).await?;

    cri.stop(&first, 600).await?;
    let again = Box::pin(cri.create(&sandbox, config(1), large.sandbox())).await?;
    cri.start(&again).await?;
    cri.await_agent(&again).await?;
    let root = disk(&cri, &again, "vda").await?;
    ensure!(root.0 == LARGE, "after a restart: {root:?}");
    let end =
        "dd if=/dev/vda bs=512 skip=$(($(cat /sys/block/vda/size) - 1)) 2>/dev/null | head -n 1";
    let kept = cri.shell(&again, end).await?;
    ensure!(kept == "at the end", "{kept:?}");

    cri.await_agent(&small).await?;
    let root = disk(&cri, &small, "vda").await?;
    ensure!(root.0 == IMAGE, "{root:?}");
    // It continues reading what the other machine had, too.
    cri.remove_pod(&sandbox).await?;
    let shared = cri.shell(&small, "head -c 9 /dev/vdb").await?;
    ensure!(shared == "as it was", "{shared}");
    cri.remove_pod(&small_sandbox).await?;
    stack.await_clean().await?;
    stack.down()
}

/// The file that the root disk of a sandbox is based on.
fn base_of(stack: &Stack, sandbox: &str) -> Result<Option<String>> {
    let id = sandbox.get(..20).context("a short id")?;
    let disk = stack.dir().join("state/pods").join(id).join("root.qcow2");
    let mut info = std::process::Command::new("qemu-img");
    let output = program::output(info.args(["info", "-U", "--output=json"]).arg(&disk))?;
    let info: serde_json::Value = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    Ok(info["backing-filename"].as_str().map(str::to_owned))
}

/// The guest writes to one device, which the node sees, and cannot write to the other.
async fn devices(cri: &Cri, id: &str, data: &LoopDevice, fixed: &LoopDevice) -> Result<()> {
    let before = fixed.read(0, 8 * MIB)?;
    let second = disk(cri, id, "vdb").await?;
    let third = disk(cri, id, "vdc").await?;
    let wanted = (8 << 20, true, "fixed".to_owned());
    ensure!(second == wanted, "the first device is {second:?}");
    let wanted = (16 << 20, false, "a-data".to_owned());
    ensure!(third == wanted, "the second device is {third:?}");
    let head = cri.shell(id, "head -c 9 /dev/vdb").await?;
    ensure!(head == "as it was", "{head}");

    // First and last sector: the guest has the whole device, as it is.
    let write = "for n in 0 32767; do echo sector $n | dd of=/dev/vdc bs=512 seek=$n conv=fsync || \
        exit 1; done";
    cri.shell(id, write).await?;
    for (offset, text) in [(0, "sector 0\n"), (32767 * 512, "sector 32767\n")] {
        let bytes = data.read(offset, text.len())?;
        ensure!(bytes == text.as_bytes(), "{offset}: {bytes:?}");
    }
    let write = "echo otherwise | dd of=/dev/vdb conv=fsync,notrunc";
    let write = cri.command(id, &["sh", "-c", write]).await?;
    ensure!(write.exit_code != 0, "it was written to: {write:?}");
    ensure!(fixed.read(0, 8 * MIB)? == before, "its bytes have changed");
    Ok(())
}

/// Two machines read the device; a third one may not write to it.
async fn no_writer_beside_readers(
    stack: &Stack,
    cri: &Cri,
    image: &str,
    fixed: &LoopDevice,
) -> Result<()> {
    let pod = PodOptions::named("writer", stack);
    let sandbox = cri.run(pod.sandbox()).await?;
    let writer = v1::ContainerConfig {
        devices: vec![device("/dev/fixed", fixed, "mrw")],
        ..pod.container(image, 0)
    };
    let refused = Box::pin(cri.create(&sandbox, writer, pod.sandbox())).await;
    let refused = refused.err().context("a writer beside readers")?;
    ensure!(
        refused.code() == Code::FailedPrecondition && refused.message().contains("in use"),
        "{refused:?}"
    );
    Ok(cri.remove_pod(&sandbox).await?)
}

async fn nonsense(stack: &Stack, cri: &Cri, image: &str) -> Result<()> {
    for (name, value) in [("root-volume-size", "much"), ("fast-deploy", "quick")] {
        let mut pod = PodOptions::named("nonsense", stack);
        let key = format!("vmlet.dev/{name}");
        pod.annotations.insert(key.clone(), value.to_owned());
        let sandbox = cri.run(pod.sandbox()).await?;
        let refused = Box::pin(cri.create(&sandbox, pod.container(image, 0), pod.sandbox())).await;
        let refused = refused.err().context(key.clone())?;
        ensure!(refused.code() == Code::InvalidArgument, "{refused:?}");
        let words = refused.message();
        ensure!(words.contains(&key) && words.contains(value), "{words}");
        cri.remove_pod(&sandbox).await?;
    }
    Ok(())
}
