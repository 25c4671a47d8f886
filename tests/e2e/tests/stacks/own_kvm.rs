//! The device file of KVM in the containers of the DaemonSet.
//!
//! Invariant: the script of the image runs with the image's tools, which are busybox, in a mount
//! namespace whose `/dev` is a folder of the test, as the container has the node's.
//! Failure: the modes of both device files.

use std::process::Command;

use anyhow::{Result, ensure};
use e2e::program;

/// `$1`: the script, `$2`: a folder. Prints the mode of the container's file, then that of the
/// node's.
const CONTAINER: &str = r#"
set -eu
mount -t tmpfs dev "$2"
mknod -m 0660 "$2/kvm" c 10 232
mknod -m 0666 "$2/null" c 1 3
mkdir "$2/node"
mount -o bind "$2" "$2/node"
mount -t tmpfs run /run
mount -o rbind "$2" /dev
. "$1"
stat -c '%a %t:%T' /dev/kvm /dev/node/kvm
"#;

#[test]
#[ignore = "needs root"]
fn the_nodes_device_file_keeps_its_mode() -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/image/own-kvm");
    let tools = scratch.path().join("bin");
    let dev = scratch.path().join("dev");
    for directory in [&tools, &dev] {
        std::fs::create_dir(directory)?;
    }
    for tool in ["sh", "mkdir", "mknod", "mount", "stat"] {
        std::os::unix::fs::symlink("/bin/busybox", tools.join(tool))?;
    }
    let mut unshare = Command::new("/usr/bin/unshare");
    unshare
        .args(["--mount", "--propagation", "private"])
        .arg(tools.join("sh"))
        .args(["-c", CONTAINER, "container", script])
        .arg(dev)
        .env("PATH", &tools);
    let output = program::output(&mut unshare)?;
    let reported = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{reported}{words}");
    ensure!(reported == "666 a:e8\n660 a:e8\n", "{reported}");
    for name in ["daemon", "libvirtd"] {
        let path = format!("{}/../../deploy/image/{name}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path)?;
        ensure!(!text.contains("chmod 0666 /dev/kvm"), "{name}: {text}");
    }
    Ok(())
}
