//! Directories of the node in a guest, by 9p. The guest has the kernel for all machines: that for
//! virtual ones has no 9p.
//!
//! Invariant: what the guest does is compared with the directory on the node; the emulator is found
//! by the process ID that the daemon reports.
//! Failure: the file or the property that differs.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use e2e::{Cri, PodOptions, Stack, v1};
use serde_json::{Value, json};

use crate::shares::{
    await_volumes, changes_arrive, directory, processes, the_next_container_has_them, volumes,
};

#[tokio::test]
#[ignore = "needs root"]
async fn a_guest_reads_and_writes_the_directories_of_its_pod_by_9p() -> Result<()> {
    let (stack, cri, image) = prepared().await?;
    let mut pod = pod("served", &stack);
    // The emulator is root in them, and nowhere else.
    let (data, fixed) = volumes(&stack, &mut pod)?;
    let (sandbox, container) = cri.boot(&pod, &image).await?;
    await_volumes(&cri, &container).await?;
    ensure!(processes(&stack)?.is_empty());
    let inspected: Value = serde_json::from_str(&stack.crictl(&["inspect", &container])?)?;
    let info = &inspected["info"];
    let last =
        json!({"tag": "vmlet-2", "path": "/srv/it's data", "readOnly": false, "protocol": "9p"});
    ensure!(info["vm"]["shares"][2] == last, "{info}");

    changes_reach_the_node(&cri, &container, &data).await?;
    let emulator = emulator(info)?;
    let line = fs::read(emulator.join("cmdline"))?;
    let line = String::from_utf8_lossy(&line);
    ensure!(
        line.contains("virtio-9p-pci") && !line.contains("memfd"),
        "{line}"
    );
    let user = fs::metadata(&emulator)?.uid();
    ensure!(user != 0, "the emulator is root");
    let seen = "stat -c %u \"/srv/it's data/new\"";
    let seen = cri.shell(&container, seen).await?;
    ensure!(seen == user.to_string(), "{seen} instead of {user}");
    nothing_is_above(&emulator, &data)?;

    // Also when the guest mounts it for writing.
    let refused = "mount -o remount,rw /srv/fixed; touch /srv/fixed/new 2>&1 || true";
    let refused = cri.shell(&container, refused).await?;
    ensure!(refused.contains("Read-only file system"), "{refused}");
    ensure!(!fixed.join("new").exists());

    changes_arrive(&stack, &cri, &pod, &container, &data).await?;

    cri.stop(&container, 60).await?;
    the_next_container_has_them(&cri, &pod, &sandbox, &image).await?;
    cri.remove_pod(&sandbox).await?;
    stack.await_clean().await?;
    stack.down()
}

#[tokio::test]
#[ignore = "needs root"]
async fn the_emulator_accesses_directories_as_the_user_of_the_container() -> Result<()> {
    let (stack, cri, image) = prepared().await?;
    let mut pod = pod("owned", &stack);
    let data = directory(&stack, "data")?;
    nix::unistd::chown(&data, Some(0.into()), Some(4321.into()))?;
    fs::set_permissions(&data, fs::Permissions::from_mode(0o2770))?;
    pod.writable = vec![(data.clone(), "/data".to_owned())];
    let id = |value| Some(v1::Int64Value { value });
    let mut config = pod.container(&image, 0);
    let linux = config.linux.get_or_insert_default();
    linux.security_context = Some(v1::LinuxContainerSecurityContext {
        run_as_user: id(1234),
        run_as_group: id(1235),
        supplemental_groups: vec![4320, 4321],
        ..v1::LinuxContainerSecurityContext::default()
    });

    // A crash of the daemon when the directory is open and the machine is not started.
    let sandbox = cri.run(pod.sandbox()).await?;
    let create = cri.create(&sandbox, config, pod.sandbox());
    let container = Box::pin(create).await?;
    stack.arm("vm.start.share")?;
    ensure!(cri.start(&container).await.is_err());
    stack.restart("vmlet")?;
    cri.await_ready().await?;

    cri.start(&container).await?;
    cri.await_agent(&container).await?;
    cri.shell(&container, "echo x >/data/file").await?;
    let file = fs::metadata(data.join("file"))?;
    ensure!((file.uid(), file.gid()) == (1234, 4321), "{file:?}");
    cri.remove_pod(&sandbox).await?;
    stack.await_clean().await?;
    stack.down()
}

async fn prepared() -> Result<(Stack, Cri, String)> {
    let stack = Stack::up()?;
    let cri = stack.cri().await?;
    cri.await_ready().await?;
    let image = stack.var("VMLET_GENERIC_IMAGE")?.to_owned();
    cri.pull(&image).await?;
    Ok((stack, cri, image))
}

fn pod(name: &str, stack: &Stack) -> PodOptions {
    let by_9p = ("vmlet.dev/shares".to_owned(), "9p".to_owned());
    PodOptions {
        annotations: BTreeMap::from([by_9p]),
        memory_mib: Some(256),
        ..PodOptions::named(name, stack)
    }
}

/// Makes all kinds of changes in the guest, and looks for them on the node.
async fn changes_reach_the_node(cri: &Cri, container: &str, data: &Path) -> Result<()> {
    let changes = "cd \"/srv/it's data\" && echo from the guest >new && mkdir a b && echo moved >a/file \
        && mv a/file b/file && ln b/file b/other && rmdir a && ln -s b/file link \
        && echo long >short && : >short && touch gone && rm gone && chmod 640 new";
    cri.shell(container, changes).await?;
    let new = fs::metadata(data.join("new"))?;
    ensure!((new.uid(), new.gid()) == (0, 0), "{new:?}");
    ensure!(new.mode() & 0o7777 == 0o640, "{new:?}");
    ensure!(fs::read_to_string(data.join("new"))? == "from the guest\n");
    ensure!(fs::read_to_string(data.join("link"))? == "moved\n");
    ensure!(fs::metadata(data.join("b/other"))?.nlink() == 2);
    ensure!(fs::metadata(data.join("short"))?.len() == 0);
    ensure!(!data.join("a").exists() && !data.join("gone").exists());
    let refused = "chown 7:7 \"/srv/it's data/new\" 2>&1 || true";
    let refused = cri.shell(container, refused).await?;
    ensure!(refused.contains("Operation not permitted"), "{refused}");
    cri.shell(container, "! mkfifo \"/srv/it's data/pipe\" 2>/dev/null")
        .await?;
    ensure!(!data.join("pipe").exists());
    Ok(())
}

/// The process of the emulator.
fn emulator(info: &Value) -> Result<PathBuf> {
    let pid = info["pid"]
        .as_u64()
        .context("the daemon reports no process")?;
    Ok(PathBuf::from(format!("/proc/{pid}")))
}

/// The descriptor that the emulator has of a directory leads nowhere else.
fn nothing_is_above(emulator: &Path, data: &Path) -> Result<()> {
    let wanted = fs::metadata(data)?;
    let is_data = |path: &Path| {
        let found = fs::metadata(path);
        found.is_ok_and(|found| (found.dev(), found.ino()) == (wanted.dev(), wanted.ino()))
    };
    let mut found = 0;
    for entry in fs::read_dir(emulator.join("fd"))? {
        let file = entry?.path();
        if is_data(&file) {
            found += 1;
            ensure!(is_data(&file.join("..")), "{} has a parent", file.display());
        }
    }
    ensure!(found > 0, "the emulator does not have the directory open");
    Ok(())
}
