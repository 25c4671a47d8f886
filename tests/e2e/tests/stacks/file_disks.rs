//! Machines whose disks are files of volumes.
//!
//! Invariant: what the guest writes is compared with the file on the node, which QEMU's user has
//! no right to.
//! Failure: the test names what was lost, allowed or left.

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cri, PodOptions, Stack, await_text};
use nix::sys::signal::Signal;

const BOOT: Duration = Duration::from_secs(180);
const DISKS: &str = r#"
- {mountPath: /claims/root, devicePath: /, file: os.qcow2, format: qcow2}
- {mountPath: /claims/data, devicePath: /dev/data, size: 8Mi}
"#;

/// A directory of the node that only root may enter.
fn volume(stack: &Stack, name: &str) -> Result<PathBuf> {
    let path = stack.dir().join("volumes").join(name);
    fs::create_dir_all(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
    Ok(path)
}

fn pod(stack: &Stack, name: &str) -> Result<PodOptions> {
    let mut pod = PodOptions::named(name, stack);
    let disks = ("vmlet.dev/file-disks".to_owned(), DISKS.to_owned());
    pod.annotations.extend([disks]);
    for name in ["root", "data"] {
        let claim = (volume(stack, name)?, format!("/claims/{name}"));
        pod.writable.push(claim);
    }
    Ok(pod)
}

async fn create(cri: &Cri, pod: &PodOptions, image: &str) -> Result<(String, String)> {
    let sandbox = cri.run(pod.sandbox()).await?;
    let create = cri.create(&sandbox, pod.container(image, 0), pod.sandbox());
    let container = Box::pin(create).await?;
    Ok((sandbox, container))
}

#[tokio::test]
#[ignore = "needs root"]
async fn files_of_volumes_are_disks_that_outlive_their_pods() -> Result<()> {
    let stack = Stack::up()?;
    let file = stack.dir().join("vmlet.toml");
    let settings = fs::read_to_string(&file)?;
    let allowed = settings.replace("\n[vm]\n", "\n[vm]\nqcow2_file_disks = true\n");
    ensure!(allowed != settings, "{settings}");
    fs::write(&file, allowed)?;
    stack.kill("vmlet", Signal::SIGTERM).await?;
    stack.restart("vmlet")?;
    let cri = stack.cri().await?;
    let image = cri.await_image(&stack).await?;
    let root = volume(&stack, "root")?;
    let data = volume(&stack, "data")?;

    // A daemon that dies while it writes the image leaves nothing that a guest boots from.
    let cut = pod(&stack, "cut")?;
    let sandbox = cri.run(cut.sandbox()).await?;
    stack.arm("vm.file.written")?;
    let create_cut = cri.create(&sandbox, cut.container(&image, 0), cut.sandbox());
    ensure!(Box::pin(create_cut).await.is_err());
    stack.restart("vmlet")?;
    cri.await_ready().await?;
    cri.remove_pod(&sandbox).await?;
    ensure!(names(&root)?.is_empty(), "{:?}", names(&root)?);

    let first = pod(&stack, "first")?;
    let (sandbox, container) = create(&cri, &first, &image).await?;
    cri.start(&container).await?;
    await_text(&first.log(0), "VMLET-BOOTS 1", BOOT).await?;
    cri.await_agent(&container).await?;
    let size = cri.shell(&container, "cat /sys/block/vdb/size").await?;
    ensure!(size == "16384", "{size} sectors");
    let write = "printf %s of-the-guest | dd of=/dev/vdb bs=4096 seek=1 && sync";
    cri.shell(&container, write).await?;
    let disk = data.join("disk.img");
    let mut found = [0; 12];
    fs::File::open(&disk)?.read_exact_at(&mut found, 4096)?;
    ensure!(&found == b"of-the-guest", "{found:?}");
    let state = fs::metadata(&disk)?;
    ensure!(
        (state.uid(), state.mode() & 0o777) == (0, 0o600),
        "{state:?}"
    );

    // QEMU's lock keeps the file to one machine.
    let thief = pod(&stack, "thief")?;
    let (other, second) = create(&cri, &thief, &image).await?;
    let refused = cri.start(&second).await.err().context("two machines")?;
    ensure!(refused.message().contains("lock"), "{refused}");
    cri.remove_pod(&other).await?;

    // The machine depends on neither daemon.
    for program in ["vmlet", "vmlet-tapmanager"] {
        stack.kill(program, Signal::SIGKILL).await?;
        stack.restart(program)?;
    }
    cri.await_ready().await?;
    let read = "dd if=/dev/vdb bs=4096 skip=1 count=1 2>/dev/null | head -c 12";
    ensure!(cri.shell(&container, read).await? == "of-the-guest");
    cri.stop_pod(&sandbox).await?;
    cri.remove_pod(&sandbox).await?;

    // The disks are there already: no image is needed.
    let last = pod(&stack, "last")?;
    let (sandbox, container) = create(&cri, &last, "vmlet.dev/none").await?;
    cri.start(&container).await?;
    await_text(&last.log(0), "VMLET-BOOTS 2", BOOT).await?;
    cri.await_agent(&container).await?;
    ensure!(cri.shell(&container, read).await? == "of-the-guest");
    cri.remove_pod(&sandbox).await?;
    ensure!(names(&root)? == ["os.qcow2"] && names(&data)? == ["disk.img"]);
    stack.await_clean().await?;
    stack.down()
}

fn names(directory: &Path) -> Result<Vec<String>> {
    let name = |entry: std::io::Result<fs::DirEntry>| -> Result<String> {
        Ok(entry?.file_name().to_string_lossy().into_owned())
    };
    let mut names: Vec<_> = fs::read_dir(directory)?.map(name).collect::<Result<_>>()?;
    names.sort();
    Ok(names)
}
