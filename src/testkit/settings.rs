//! The settings of machines in tests.
//!
//! Invariant: nothing outside of the scratch directory is written.
//! Failure: none.

use std::path::Path;

use podspec::{CpuModel, Defaults, Mib, Vcpus};

use crate::vm;
use crate::vm::accelerator::Setting;

/// Those of a node with this scratch directory.
pub(super) fn for_scratch(scratch: &Path) -> vm::Settings {
    vm::Settings {
        state_dir: scratch.to_owned(),
        accelerator: Setting::Tcg,
        emulator: "/usr/bin/qemu-system-x86_64".into(),
        wrapper: "/usr/bin/vmwrapper".into(),
        guest_agent: "/usr/bin/vmlet-guest".into(),
        firmware: scratch.join("firmware"),
        handoff_socket: "/run/vmlet/handoff.sock".into(),
        uid: nix::unistd::geteuid().as_raw(),
        gid: nix::unistd::getegid().as_raw(),
        uids: vm::UidRange::default(),
        boot_id_file: service::boot_id::KERNEL.into(),
        cgroup_root: scratch.join("cgroup"),
        installation: "testkit".to_owned(),
        defaults: Defaults {
            vcpus: Vcpus::ONE,
            memory: Mib::new(64),
            cpu_model: CpuModel::Default,
        },
        unknown_image: vm::UnknownImage::Pull,
        memory_overhead: 160 << 20,
        landlock: vm::Landlock::On,
        qcow2_file_disks: true,
        unsupported: vm::Unsupported::Refuse,
        shares: vm::ShareSettings {
            program: scratch.join("virtiofsd"),
            root: "/".into(),
            user: vm::Owner {
                uid: 65_534,
                gid: 65_534,
            },
        },
    }
}
