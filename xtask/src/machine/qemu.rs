//! The command line of QEMU: the hardware of the machine.
//!
//! Invariant: the memory of a snapshot fits the hardware that it was saved with, to the last
//! device; a stamp therefore has all of these words and QEMU's version.
//! Failure: QEMU's own message, which is in `qemu.log`.

use std::process::Command;

use anyhow::Result;

use crate::run;

pub(super) const PROGRAM: &str = "qemu-system-x86_64";

/// The bus for a disk that is plugged in.
pub(super) const FREE_PORT: &str = "free";

/// Files in the folder of a run.
pub(super) const DISK: &str = "disk.qcow2";
pub(super) const MONITOR: &str = "monitor.sock";
pub(super) const AGENT: &str = "agent.sock";
pub(super) const SHELL: &str = "shell.sock";

/// Everything but the source of the memory. Two processors and 6 GiB, and no network card.
const HARDWARE: &[&str] = &[
    "-name vmlet-machine -nodefaults -no-user-config -display none -nic none",
    "-machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 6144 -rtc base=utc",
    // What a run writes is thrown away with it.
    "-drive file=disk.qcow2,if=none,id=root,format=qcow2,discard=unmap,cache=unsafe",
    "-device virtio-blk-pci,drive=root",
    "-device virtio-rng-pci",
    "-device pcie-root-port,id=free,chassis=1",
    "-device virtio-serial-pci",
    "-chardev socket,id=agent,path=agent.sock,server=on,wait=off",
    "-device virtserialport,chardev=agent,name=org.qemu.guest_agent.0",
    "-chardev socket,id=shell,path=shell.sock,server=on,wait=off",
    "-device virtconsole,chardev=shell",
    "-chardev file,id=console,path=console.log",
    "-serial chardev:console",
    "-qmp unix:monitor.sock,server=on,wait=off",
];

/// The command of a machine that boots, for the folder of a run.
pub(super) fn boot() -> Command {
    let mut qemu = run::command(PROGRAM);
    qemu.args(HARDWARE.iter().flat_map(|line| line.split(' ')));
    qemu
}

/// The command of a machine whose memory comes from a packed file.
pub(super) fn load(memory: &str) -> Command {
    let mut qemu = boot();
    qemu.args(["-incoming", &format!("exec:zstd -q -d -c {memory}")]);
    qemu
}

/// What the memory of a snapshot depends on.
pub(super) fn identity() -> Result<String> {
    let version = run::output(run::command(PROGRAM).arg("--version"))?;
    let version = version.lines().next().unwrap_or_default();
    Ok(format!("{version} {}", HARDWARE.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_network_reaches_the_machine() {
        let line = run::describe(&load("memory.zst"));
        assert!(line.contains("-nodefaults") && line.contains("-nic none"));
        for network in ["-netdev", "-net ", "hostfwd", "tcp:"] {
            assert!(!line.contains(network), "{network} in {line}");
        }
    }

    #[test]
    fn the_hardware_has_the_files_and_the_port_that_others_name() {
        let line = run::describe(&boot());
        for file in [DISK, AGENT, SHELL, MONITOR] {
            assert!(line.contains(file), "{file} in {line}");
        }
        assert!(line.contains(&format!("pcie-root-port,id={FREE_PORT}")));
    }
}
