//! The packages and their contents.
//!
//! Invariant: no two packages have the same file; the places of programs are those of the units.
//! Failure: none.

use super::Package;

/// The node half.
pub(crate) const VMLET: Package = Package {
    name: "vmlet",
    programs: &[
        ("vmlet", "usr/bin/vmlet"),
        ("vmlet-tapmanager", "usr/bin/vmlet-tapmanager"),
        ("vmwrapper", "usr/libexec/vmlet/vmwrapper"),
        ("vmlet-virtiofsd", "usr/libexec/vmlet/vmlet-virtiofsd"),
    ],
    agent: Some("usr/libexec/vmlet/vmlet-guest"),
    files: &[
        ("deploy/image/libvirtd", "usr/libexec/vmlet/libvirtd", 0o755),
        ("deploy/image/own-kvm", "usr/libexec/vmlet/own-kvm", 0o644),
        (
            "deploy/systemd/vmlet.service",
            "lib/systemd/system/vmlet.service",
            0o644,
        ),
        (
            "deploy/systemd/vmlet-libvirtd.service",
            "lib/systemd/system/vmlet-libvirtd.service",
            0o644,
        ),
        (
            "deploy/systemd/vmlet-tapmanager.service",
            "lib/systemd/system/vmlet-tapmanager.service",
            0o644,
        ),
        ("deploy/systemd/vmlet.toml", "etc/vmlet/vmlet.toml", 0o644),
        ("deploy/apparmor/vmlet", "etc/apparmor.d/vmlet", 0o644),
        (
            "deploy/apparmor/vmlet-qemu",
            "etc/apparmor.d/vmlet-qemu",
            0o644,
        ),
    ],
    libraries: &["libc6", "libvirt0", "libcap-ng0", "libseccomp2"],
    // libvirt-daemon-system makes QEMU's user and its group.
    depends: &[
        "libvirt-daemon-system",
        "libvirt-daemon-driver-qemu",
        "qemu-system-x86",
        "qemu-utils",
        "util-linux",
    ],
    // Firmware of machines that boot by UEFI.
    recommends: &["ovmf"],
    summary: "virtual machines as pods of Kubernetes: the node's programs",
    description: &[
        "The CRI runtime vmlet, which runs pods as virtual machines by libvirt and QEMU,",
        "the owner of their networks, and a libvirtd for them alone, as units of systemd.",
        "kubelet reaches the runtime by vmlet-criproxy.",
    ],
};

/// kubelet's runtime endpoint.
pub(crate) const CRIPROXY: Package = Package {
    name: "vmlet-criproxy",
    programs: &[("vmlet-criproxy", "usr/bin/vmlet-criproxy")],
    agent: None,
    files: &[
        (
            "deploy/systemd/vmlet-criproxy.service",
            "lib/systemd/system/vmlet-criproxy.service",
            0o644,
        ),
        (
            "deploy/systemd/criproxy.toml",
            "etc/vmlet/criproxy.toml",
            0o644,
        ),
    ],
    libraries: &["libc6"],
    depends: &[],
    recommends: &[],
    summary: "one CRI endpoint for kubelet in front of containerd and Vmlet",
    description: &[
        "Forwards the pods of Vmlet's RuntimeClasses to Vmlet and all others to containerd.",
        "kubelet uses it when its setting containerRuntimeEndpoint names the proxy's socket.",
    ],
};

/// The command for users.
pub(crate) const VMLETCTL: Package = Package {
    name: "vmletctl",
    programs: &[("vmletctl", "usr/bin/vmletctl")],
    agent: None,
    files: &[],
    libraries: &["libc6"],
    depends: &[],
    recommends: &[],
    summary: "command for virtual machines in Kubernetes",
    description: &[
        "Starts, stops, shows and reaches the machines of a cluster, and looks at a node",
        "and its virtual machines without one.",
    ],
};

/// The agent in guests.
pub(crate) const GUEST: Package = Package {
    name: "vmlet-guest",
    programs: &[],
    agent: Some("usr/sbin/vmlet-guest"),
    files: &[
        (
            "deploy/guest/vmlet-guest.service",
            "lib/systemd/system/vmlet-guest.service",
            0o644,
        ),
        (
            "deploy/guest/60-vmlet-guest.rules",
            "lib/udev/rules.d/60-vmlet-guest.rules",
            0o644,
        ),
    ],
    libraries: &[],
    depends: &[],
    recommends: &[],
    summary: "agent of Vmlet for virtual machines",
    description: &[
        "Runs the commands of kubectl exec and kubectl cp in this machine, with terminals",
        "and standard input, and reports facts about it. It starts when the machine has the",
        "virtio-serial port dev.vmlet.guest.0.",
    ],
};
