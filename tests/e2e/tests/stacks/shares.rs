//! Directories of the node in a guest, by virtiofs.
//!
//! Invariant: what the guest does is compared with the directory on the node; the processes of
//! shares are found by their command lines.
//! Failure: the file or the property that differs, or a process that is left.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Cri, PodOptions, Stack, cases, eventually, v1};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const PROGRAM: &str = "vmlet-virtiofsd";
const SOON: Duration = Duration::from_secs(180);
/// The node's user for shares.
const SHARE_USER: u32 = 65_534;

#[tokio::test]
#[ignore = "needs root"]
async fn guests_have_the_directories_of_their_pods() -> Result<()> {
    let stack = Stack::up()?;
    cases!(
        &stack,
        [
            a_guest_reads_and_writes_the_directories_of_its_pod,
            shares_have_the_identity_of_the_container_and_end_with_a_start_that_fails
        ]
    );
    stack.down()
}

async fn a_guest_reads_and_writes_the_directories_of_its_pod(stack: &Stack) -> Result<()> {
    let cri = stack.cri().await?;
    let image = cri.await_image(stack).await?;
    let mut pod = PodOptions::named("shared", stack);
    let (data, fixed) = volumes(stack, &mut pod)?;
    let (sandbox, container) = cri.boot(&pod, &image).await?;
    await_volumes(&cri, &container).await?;
    cri.shell(&container, "echo from the guest >\"/srv/it's data/new\"")
        .await?;
    let new = data.join("new");
    ensure!(fs::read_to_string(&new)? == "from the guest\n");
    let made = fs::metadata(&new)?;
    ensure!((made.uid(), made.gid()) == (0, 0), "{made:?}");
    let seen = "stat -c %u:%g \"/srv/it's data/new\"";
    ensure!(cri.shell(&container, seen).await? == "0:0");
    cri.shell(&container, "chown 7:7 \"/srv/it's data/new\"")
        .await?;
    ensure!(cri.shell(&container, seen).await? == "0:0");
    let inspected: Value = serde_json::from_str(&stack.crictl(&["inspect", &container])?)?;
    let last = &inspected["info"]["vm"]["shares"][2];
    ensure!(
        *last
            == json!({"tag": "vmlet-2", "path": "/srv/it's data", "readOnly": false, "protocol": "virtiofs"})
    );
    let refused = "touch /srv/fixed/new 2>&1 || true";
    let refused = cri.shell(&container, refused).await?;
    ensure!(refused.contains("Read-only file system"), "{refused}");
    ensure!(!fixed.join("new").exists());

    let processes = processes(stack)?;
    // Each waits for its child in namespaces.
    ensure!(processes.len() == 6, "{processes:?}");
    let confined = processes.iter().filter(|pid| is_confined(pid)).count();
    ensure!(confined == 3, "{confined} of {processes:?} are confined");

    changes_arrive(stack, &cri, &pod, &container, &data).await?;

    cri.stop(&container, 60).await?;
    await_no_process(stack).await?;
    the_next_container_has_them(&cri, &pod, &sandbox, &image).await?;
    cri.remove_pod(&sandbox).await?;
    await_no_process(stack).await?;
    stack.await_clean().await
}

/// A ConfigMap, and two directories that only root may enter: one to write to, one that is read-only.
pub(crate) fn volumes(stack: &Stack, pod: &mut PodOptions) -> Result<(PathBuf, PathBuf)> {
    pod.mount_config(stack, "/etc/demo", "greeting", "first")?;
    let data = directory(stack, "data")?;
    let fixed = directory(stack, "fixed")?;
    fs::write(fixed.join("old"), "of the node")?;
    for (path, mode) in [(&data, 0o700), (&fixed, 0o700), (&fixed.join("old"), 0o400)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    pod.writable = vec![(data.clone(), "/srv/it's data".to_owned())];
    pod.mounts.push((fixed.clone(), "/srv/fixed".to_owned()));
    Ok((data, fixed))
}

/// Waits for the guest, which reads the [`volumes`].
pub(crate) async fn await_volumes(cri: &Cri, container: &str) -> Result<()> {
    cri.await_agent(container).await?;
    ensure!(cri.shell(container, "cat /etc/demo/greeting").await? == "first");
    ensure!(cri.shell(container, "cat /srv/fixed/old").await? == "of the node");
    Ok(())
}

const LATER: &str = "cat \"/srv/it's data/later\"";
const LATER_TEXT: &str = "after the daemon's death";

/// What kubelet and other pods change in the [`volumes`] reaches the guest, also without the daemon that
/// started it.
pub(crate) async fn changes_arrive(
    stack: &Stack,
    cri: &Cri,
    pod: &PodOptions,
    container: &str,
    data: &Path,
) -> Result<()> {
    pod.update_config("greeting", "second")?;
    await_output(cri, container, "cat /etc/demo/greeting", "second").await?;
    stack.kill("vmlet", Signal::SIGKILL).await?;
    stack.restart("vmlet")?;
    cri.await_ready().await?;
    fs::write(data.join("later"), LATER_TEXT)?;
    await_output(cri, container, LATER, LATER_TEXT).await
}

/// Another container of the pod finds what [`changes_arrive`] left.
pub(crate) async fn the_next_container_has_them(
    cri: &Cri,
    pod: &PodOptions,
    sandbox: &str,
    image: &str,
) -> Result<()> {
    let create = cri.create(sandbox, pod.container(image, 1), pod.sandbox());
    let next = Box::pin(create).await?;
    cri.start(&next).await?;
    cri.await_agent(&next).await?;
    ensure!(cri.shell(&next, LATER).await? == LATER_TEXT);
    Ok(())
}

async fn shares_have_the_identity_of_the_container_and_end_with_a_start_that_fails(
    stack: &Stack,
) -> Result<()> {
    let cri = stack.cri().await?;
    let image = cri.await_image(stack).await?;
    let mut pod = PodOptions::named("owned", stack);
    let data = directory(stack, "data")?;
    nix::unistd::chown(&data, Some(0.into()), Some(4321.into()))?;
    fs::set_permissions(&data, fs::Permissions::from_mode(0o2770))?;
    pod.writable = vec![(data.clone(), "/data".to_owned())];
    let id = |value| Some(v1::Int64Value { value });
    let mut config = pod.container(&image, 0);
    let linux = config.linux.get_or_insert_default();
    linux.security_context = Some(v1::LinuxContainerSecurityContext {
        run_as_user: id(1234),
        run_as_group: id(1235),
        supplemental_groups: vec![4321],
        ..v1::LinuxContainerSecurityContext::default()
    });

    // A crash of the daemon between the start of the process and that of the machine.
    let sandbox = cri.run(pod.sandbox()).await?;
    let create = cri.create(&sandbox, config, pod.sandbox());
    let container = Box::pin(create).await?;
    stack.arm("vm.start.share")?;
    ensure!(cri.start(&container).await.is_err());
    stack.restart("vmlet")?;
    cri.await_ready().await?;
    await_no_process(stack).await?;

    cri.start(&container).await?;
    cri.await_agent(&container).await?;
    cri.shell(&container, "echo x >/data/file").await?;
    let file = fs::metadata(data.join("file"))?;
    ensure!((file.uid(), file.gid()) == (1234, 4321), "{file:?}");
    cri.remove_pod(&sandbox).await?;
    await_no_process(stack).await?;
    stack.await_clean().await
}

/// A directory of the node that any user may write to.
pub(crate) fn directory(stack: &Stack, name: &str) -> Result<PathBuf> {
    let path = stack.dir().join("shared").join(name);
    fs::create_dir_all(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
    Ok(path)
}

async fn await_output(cri: &Cri, container: &str, command: &str, wanted: &str) -> Result<()> {
    eventually(SOON, command, || async {
        let found = cri.shell(container, command).await?;
        ensure!(found == wanted, "{found}");
        Ok(())
    })
    .await
}

pub(crate) async fn await_no_process(stack: &Stack) -> Result<()> {
    eventually(SOON, "the end of all processes of shares", || async {
        let left = processes(stack)?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
    .await
}

/// The processes of shares of this stack.
pub(crate) fn processes(stack: &Stack) -> Result<Vec<PathBuf>> {
    running(stack, "")
}

/// The servers of shares, without the programs that add a volume to one or take it away.
pub(crate) fn servers(stack: &Stack) -> Result<Vec<PathBuf>> {
    running(stack, "serve\0")
}

fn running(stack: &Stack, arguments: &str) -> Result<Vec<PathBuf>> {
    let program = stack.dir().join("bin").join(PROGRAM);
    let program = format!("{}\0{arguments}", program.display());
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let process = entry?.path();
        let line = fs::read(process.join("cmdline")).unwrap_or_default();
        if line.starts_with(program.as_bytes()) {
            found.push(process);
        }
    }
    Ok(found)
}

/// Whether a process has nothing but its directory.
pub(crate) fn is_confined(process: &Path) -> bool {
    let status = fs::read_to_string(process.join("status")).unwrap_or_default();
    let has = |line: &str| status.lines().any(|found| found == line);
    let root = fs::metadata(process.join("root/etc/passwd"));
    let links = fs::read_to_string(process.join("net/dev")).unwrap_or_default();
    has(&format!(
        "Uid:\t{SHARE_USER}\t{SHARE_USER}\t{SHARE_USER}\t{SHARE_USER}"
    )) && has("CapEff:\t0000000000000000")
        && has("CapPrm:\t0000000000000000")
        && has("NoNewPrivs:\t1")
        && has("Seccomp:\t2")
        && root.is_err()
        && links
            .lines()
            .skip(2)
            .all(|link| link.trim_start().starts_with("lo:"))
}
