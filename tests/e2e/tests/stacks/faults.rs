//! kill -9 at every crash point of the daemon and of the tapmanager.
//!
//! Invariant: after a restart the same request succeeds, and after removal nothing is left.
//! Failure: the test names the crash point, and what was refused or left.

use std::collections::BTreeSet;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cri, LoopDevice, PodOptions, REGISTRY, Stack, eventually, v1};
use tonic::Status;

const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test]
#[ignore = "needs root"]
async fn a_request_that_was_killed_anywhere_can_be_repeated() -> Result<()> {
    let points = crash_points()?;
    ensure!(
        points.len() > 30,
        "the sources have crash points: {points:?}"
    );
    let stack = Stack::up_with_registries()?;
    stack.cri().await?.await_ready().await?;
    for point in &points {
        stack.arm(point)?;
        live(&stack, point)
            .await
            .with_context(|| format!("killed at {point}"))?;
        // A program may die after it has answered.
        eventually(TIMEOUT, "a death", || async {
            ensure!(!stack.is_armed(point), "no request reached {point}");
            Ok(())
        })
        .await?;
        if restart_dead(&stack).await? > 0 {
            stack.cri().await?.await_ready().await?;
        }
        stack
            .await_clean()
            .await
            .with_context(|| format!("killed at {point}"))?;
    }
    stack.down()
}

/// A whole life, each step repeated after whichever program ended is back.
async fn live(stack: &Stack, point: &str) -> Result<()> {
    // Only a disk that is packed passes this point.
    let image = match point {
        "images.pull.unpacked" => format!("{REGISTRY}/disks/hello:1"),
        _ => stack.image()?.to_owned(),
    };
    let mut pod = PodOptions::named(&point.replace('.', "-"), stack);
    let user_data = ("vmlet.dev/cloud-init-user-data", "#cloud-config\n{}");
    pod.annotations = [user_data]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into();
    // Only machines with a share pass vm.start.share.
    if point.starts_with("vm.st") {
        let data = stack.dir().join("data");
        std::fs::create_dir_all(&data)?;
        pod.writable = vec![(data, "/data".to_owned())];
    }
    // Only machines whose root disk is made in a file of a volume pass these points.
    let volume = stack.dir().join("volumes").join(point);
    let is_in_file = point.starts_with("vm.file.");
    if is_in_file {
        std::fs::create_dir_all(&volume)?;
        let disks = "[{mountPath: /claims/root, devicePath: /}]";
        let disks = ("vmlet.dev/file-disks".to_owned(), disks.to_owned());
        pod.annotations.extend([disks]);
        pod.writable = vec![(volume.clone(), "/claims/root".to_owned())];
    }
    // Only machines on a device pass these points.
    let device = point.starts_with("vm.block.").then(|| LoopDevice::new(96));
    let device = device.transpose()?;
    let devices = device.as_ref().map(|device| v1::Device {
        container_path: "/".to_owned(),
        host_path: device.path().display().to_string(),
        permissions: "mrw".to_owned(),
    });
    let machine = v1::ContainerConfig {
        devices: devices.into_iter().collect(),
        ..pod.container(&image, 0)
    };
    step(stack, "PullImage", async |cri| cri.pull(&image).await).await?;
    let sandbox = step(stack, "RunPodSandbox", async |cri| {
        cri.run(pod.sandbox()).await
    })
    .await?;
    // Only a container in the place of one with another image passes these points.
    let earlier = format!("{REGISTRY}/pause:3.9");
    let is_replaced = ["vm.create.image", "vm.replace.", "images.move."];
    let is_replaced = is_replaced.iter().any(|start| point.starts_with(start));
    if is_replaced {
        let other = pod.container(&earlier, 0);
        step(stack, "PullImage", async |cri| cri.pull(&earlier).await).await?;
        let create =
            async |cri: Cri| Box::pin(cri.create(&sandbox, other.clone(), pod.sandbox())).await;
        let container = step(stack, "CreateContainer", create).await?;
        step(stack, "RemoveContainer", async |cri| {
            cri.remove(&container).await
        })
        .await?;
    }
    let create =
        async |cri: Cri| Box::pin(cri.create(&sandbox, machine.clone(), pod.sandbox())).await;
    let container = step(stack, "CreateContainer", create).await?;
    step(stack, "StartContainer", async |cri| {
        cri.start(&container).await
    })
    .await?;
    step(stack, "StopContainer", async |cri| {
        cri.stop(&container, 0).await
    })
    .await?;
    step(stack, "RemoveContainer", async |cri| {
        cri.remove(&container).await
    })
    .await?;
    if point.starts_with("images.unpin") {
        // The file is removed with the last disk that uses it as its base, not with its name.
        step(stack, "RemoveImage", async |cri| {
            cri.remove_image(&image).await
        })
        .await?;
    }
    step(stack, "StopPodSandbox", async |cri| {
        cri.stop_pod(&sandbox).await
    })
    .await?;
    step(stack, "RemovePodSandbox", async |cri| {
        cri.remove_pod(&sandbox).await
    })
    .await?;
    step(stack, "RemoveImage", async |cri| {
        cri.remove_image(&image).await
    })
    .await?;
    if is_replaced {
        step(stack, "RemoveImage", async |cri| {
            cri.remove_image(&earlier).await
        })
        .await?;
    }
    let containers = step(stack, "ListContainers", async |cri| cri.containers().await).await?;
    let sandboxes = step(stack, "ListPodSandbox", async |cri| cri.sandboxes().await).await?;
    let images = step(stack, "ListImages", async |cri| cri.image_ids().await).await?;
    ensure!(containers.is_empty() && sandboxes.is_empty() && images.is_empty());
    if is_in_file {
        let left: Vec<_> = std::fs::read_dir(&volume)?.collect::<Result<_, _>>()?;
        ensure!(
            left.len() == 1 && volume.join("disk.img").exists(),
            "{left:?}"
        );
    }
    Ok(())
}

/// A connection, also when the daemon dies a moment after it has answered the step before.
async fn connect(stack: &Stack) -> Result<Cri> {
    loop {
        let died = eventually(TIMEOUT, "the death of a program", || async {
            ensure!(restart_dead(stack).await? > 0, "everything runs");
            Ok(())
        });
        tokio::select! {
            connected = stack.cri() => return connected,
            restarted = died => restarted?,
        }
    }
}

/// One request; when it fails because a program ended, that program is started and the request
/// repeated.
pub(crate) async fn step<T, F>(stack: &Stack, name: &str, request: impl Fn(Cri) -> F) -> Result<T>
where
    F: Future<Output = Result<T, Status>>,
{
    let first = request(connect(stack).await?).await;
    let refused = match first {
        Ok(value) if restart_dead(stack).await? == 0 => return Ok(value),
        // The program ended after it had answered, or another one died at the same time.
        Ok(_) => Status::unknown("answered, then killed"),
        Err(status) => {
            let dead = eventually(TIMEOUT, "the death of a program", || async {
                let dead = restart_dead(stack).await?;
                ensure!(
                    dead > 0,
                    "{name} failed although everything runs: {status:?}"
                );
                Ok(dead)
            });
            dead.await?;
            status
        }
    };
    let cri = stack.cri().await?;
    cri.await_ready().await?;
    request(cri)
        .await
        .with_context(|| format!("{name} again, after {refused:?}"))
}

pub(crate) async fn restart_dead(stack: &Stack) -> Result<usize> {
    let mut count = 0;
    for program in ["vmlet-tapmanager", "vmlet"] {
        if !stack.is_alive(program) {
            stack.restart(program)?;
            count += 1;
        }
    }
    Ok(count)
}

/// The names of all crash points in the sources.
fn crash_points() -> Result<BTreeSet<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut points = BTreeSet::new();
    for folder in ["src", "tapmanager/src"] {
        collect(&root.join(folder), &mut points)?;
    }
    // Those of the node API, of a resize, of processes, of a guest that is frozen and of backups are not on the way of an
    // ordinary pod: `node_crashes.rs`, `resize.rs`, `processes.rs`, `debian/quiesce.rs`, `backups.rs` and `backups_bucket.rs`
    // have them.
    let others = ["node.", "resize.", "process.", "quiesce.", "backup."];
    points.retain(|point| !others.iter().any(|other| point.starts_with(other)));
    Ok(points)
}

fn collect(folder: &Path, points: &mut BTreeSet<String>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, points)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path)?;
            let calls = text.split("faultpoint::point(\"").skip(1);
            points.extend(calls.filter_map(|call| Some(call.split_once('"')?.0.to_owned())));
        }
    }
    Ok(())
}
