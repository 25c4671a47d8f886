//! The guest's whole user space, packed as the kernel's initial file system.
//!
//! Invariant: everything in it comes from `xtask/guest`, `vmlet-guest`, busybox, the QEMU guest
//! agent with the libraries that the dynamic linker names, the DHCPv6 client, and the kernel package.
//! Failure: names the file or program that is missing.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::fresh_folder;
use super::kernel::Kernel;
use super::modules::Modules;
use crate::run;

/// Where a file of `xtask/guest` is in the guest.
const PLACES: &[(&str, &str)] = &[
    ("init", "init"),
    ("inittab", "etc/inittab"),
    ("fstab", "etc/fstab"),
    ("udhcpc", "etc/udhcpc"),
    ("ipv6", "etc/ipv6"),
    ("dhcp6c", "etc/dhcp6c"),
    ("ready", "etc/ready"),
    ("ticker", "etc/ticker"),
    ("agent", "etc/agent"),
    ("guest-agent", "etc/guest-agent"),
    ("lease", "etc/lease"),
    ("ipcs", "bin/ipcs"),
    ("console", "etc/console"),
    ("plugged", "etc/plugged"),
    ("profile", "etc/profile"),
    ("shutdown", "sbin/shutdown"),
    // What busybox acpid runs when the power button is pressed.
    ("shutdown", "etc/acpi/PWRF/00000080"),
];

/// Builds the archive below `work`; `programs` are further files with their places.
pub(crate) fn build(
    work: &Path,
    sources: &Path,
    kernel: &Kernel,
    programs: &[(&str, PathBuf)],
) -> Result<PathBuf> {
    let root = fresh_folder(work.join("initramfs"))?;
    for folder in [
        "bin",
        "boot",
        "dev",
        "etc/acpi/PWRF",
        "lib/modules",
        "lib64",
        "proc",
        "root",
        "run",
        "sbin",
        "sys",
        "tmp",
        "var",
    ] {
        fs::create_dir_all(root.join(folder)).with_context(|| format!("create {folder}"))?;
    }
    symlink("../run", root.join("var/run"))?;
    for (source, place) in PLACES {
        install(&sources.join(source), &root.join(place), 0o755)?;
    }
    let users = "root::0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n";
    fs::write(root.join("etc/passwd"), users)?;
    fs::write(root.join("etc/group"), "root:x:0:\nnobody:x:65534:\n")?;
    fs::write(root.join("etc/hosts"), "127.0.0.1 localhost\n")?;

    busybox(&root)?;
    guest_agent(&root)?;
    for (place, file) in programs {
        install(file, &root.join(place), 0o755)?;
    }
    let order =
        Modules::scan(&kernel.modules)?.install(&root.join("lib/modules"), kernel.flavour)?;
    for (name, files) in [
        ("modules", order.always),
        ("modules.seed", order.seed),
        ("modules.uefi", order.uefi),
        ("modules.shares", order.shares),
    ] {
        fs::write(root.join("etc").join(name), files.join("\n") + "\n")?;
    }
    pack(work, &root)
}

fn busybox(root: &Path) -> Result<()> {
    let program = first_existing(&["/bin/busybox", "/usr/bin/busybox"])?;
    install(&program, &root.join("bin/busybox"), 0o755)?;
    for applet in run::output(run::command(&program).arg("--list"))?.lines() {
        let link = root.join("bin").join(applet);
        if applet != "busybox" && !link.exists() {
            symlink("busybox", &link).with_context(|| format!("link {applet}"))?;
        }
    }
    Ok(())
}

fn guest_agent(root: &Path) -> Result<()> {
    let program = first_existing(&["/usr/sbin/qemu-ga", "/usr/bin/qemu-ga"])?;
    install(&program, &root.join("bin/qemu-ga"), 0o755)?;
    for library in libraries(&run::output(run::command("ldd").arg(&program))?) {
        let name = library.file_name().context("a library without a name")?;
        let folder = if library.starts_with("/lib64") {
            "lib64"
        } else {
            "lib"
        };
        install(&library, &root.join(folder).join(name), 0o755)?;
    }
    Ok(())
}

/// Packs the folder with what is quickest to unpack under software emulation. An archive that is
/// not compressed would take longer: the boot loader's reads are slow, too.
fn pack(work: &Path, root: &Path) -> Result<PathBuf> {
    let archive = work.join("initrd");
    let script = "find . | sort | cpio --quiet -o -H newc --owner 0:0 | lz4 -l -9 -q -c >\"$1\"";
    run::output(
        run::command("sh")
            .args(["-ec", script, "pack"])
            .arg(&archive)
            .current_dir(root),
    )?;
    Ok(archive)
}

fn install(from: &Path, to: &Path, mode: u32) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))
        .with_context(|| format!("set the mode of {}", to.display()))
}

fn first_existing(places: &[&str]) -> Result<PathBuf> {
    let place = places.iter().find(|place| Path::new(place).exists());
    place
        .map(PathBuf::from)
        .with_context(|| format!("{} is missing: run cargo xtask setup", places[0]))
}

/// The files that `ldd` names.
fn libraries(text: &str) -> Vec<PathBuf> {
    text.lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_are_the_absolute_paths_of_ldd() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibudev.so.1 => \
            /lib/x86_64-linux-gnu/libudev.so.1 (0x0)\n\t/lib64/ld-linux-x86-64.so.2 (0x0)\n";
        let found = libraries(text);
        assert_eq!(
            found,
            [
                PathBuf::from("/lib/x86_64-linux-gnu/libudev.so.1"),
                PathBuf::from("/lib64/ld-linux-x86-64.so.2")
            ]
        );
    }
}
