//! Checks: converts facts to findings.
//!
//! Invariant: pure; the order is that in which an operator would repair things.
//! Failure: none.

use service::apparmor::State;

use super::Finding;
use super::apparmor::{AppArmor, Include};
use super::facts::{Answers, Cgroup, CniDir, Condition, Daemon, Facts};
use super::info::{Info, Part};
use super::kernel::{Device, Feature};

mod host;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Below this, pulling an image is likely to fill the disk.
const DISK_WARN: u64 = 5 * GIB;
/// The libvirtd of the node.
const SYSTEM: &str = "qemu:///system";
/// Below this, running VMs are likely to fill the disk.
const DISK_FAIL: u64 = 500 * MIB;

pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let mut findings = daemon(&facts.daemon);
    let answers = match &facts.daemon {
        Daemon::Answers(answers) => Some(answers.as_ref()),
        Daemon::Absent { .. } | Daemon::Mute(_) => None,
    };
    findings.push(kvm(&facts.kvm, answers.map(|a| &a.info)));
    if let Some(answers) = answers {
        findings.push(libvirt(&answers.info));
        findings.push(qemu(&answers.info.qemu));
        findings.push(tapmanager(&answers.info.tapmanager));
        findings.extend(network(answers));
    }
    findings.extend(facts.cni_config.as_ref().map(cni_config));
    findings.extend(cni_plugins(&facts.cni_plugins));
    findings.push(tun(&facts.tun));
    findings.extend(
        facts
            .features
            .iter()
            .map(|&(module, feature)| kernel(module, feature)),
    );
    findings.push(cgroup(facts.cgroup));
    findings.extend(answers.map(|a| host::all(&a.info.node)).unwrap_or_default());
    findings.extend(apparmor(&facts.apparmor));
    findings.extend(facts.hardening.findings());
    findings.extend(disk(facts));
    findings
}

fn daemon(daemon: &Daemon) -> Vec<Finding> {
    match daemon {
        Daemon::Absent { error, advice } => vec![Finding::fail("daemon", error, *advice)],
        Daemon::Mute(error) => {
            vec![Finding::fail(
                "daemon",
                error,
                "see its log (journalctl -u vmlet)",
            )]
        }
        Daemon::Answers(answers) => {
            let mut findings = vec![Finding::ok("daemon", &answers.version)];
            // The network and the accelerator have findings of their own.
            let has_own = ["NetworkReady", "HardwareVirtualization"];
            let unmet = |c: &&Condition| !c.is_met && !has_own.contains(&c.name.as_str());
            findings.extend(answers.conditions.iter().filter(unmet).map(|condition| {
                let what = format!("{} is not met: {}", condition.name, condition.message);
                Finding::fail(
                    "daemon",
                    what,
                    "see the findings below, and journalctl -u vmlet",
                )
            }));
            findings
        }
    }
}

fn kvm(device: &Device, info: Option<&Info>) -> Finding {
    let check = "kvm";
    let slow = "VMs run in software emulation, which is many times slower";
    let missing = "turn on virtualisation in the firmware (in a VM: nested virtualisation on its \
        host), then modprobe kvm_intel or kvm_amd";
    let reason = |info: &Info| match info.accelerator_reason.as_str() {
        "" => String::new(),
        reason => format!(": {reason}"),
    };
    match (info.map(|i| (i, i.accelerator.as_deref())), device) {
        (Some((info, Some("kvm"))), _) => Finding::ok(check, format!("used{}", reason(info))),
        (Some((info, Some("tcg"))), device) => {
            let what = format!("not used, {slow}{}", reason(info));
            let advice = match device {
                Device::Missing => missing,
                Device::Denied => "give the daemon and QEMU's user access to /dev/kvm",
                Device::Usable | Device::Broken(_) => {
                    "/dev/kvm is there but no guest runs under it, or software emulation was \
                     configured: repair nested virtualisation on the host, or set the accelerator \
                     to kvm"
                }
            };
            Finding::warn(check, what, advice)
        }
        (_, Device::Usable) => {
            let what = "/dev/kvm opens; whether guests run under it, only the daemon's probe shows";
            Finding::warn(check, what, "start the daemon and run this again")
        }
        (_, Device::Missing) => Finding::warn(check, format!("no /dev/kvm: {slow}"), missing),
        (_, Device::Denied) => Finding::warn(
            check,
            "no access to /dev/kvm",
            "run this as root (sudo vmletctl doctor)",
        ),
        (_, Device::Broken(error)) => Finding::warn(
            check,
            format!("/dev/kvm does not open ({error}): {slow}"),
            missing,
        ),
    }
}

fn libvirt(info: &Info) -> Finding {
    let own = info.libvirt_uri.as_deref().filter(|uri| *uri != SYSTEM);
    let advice = match own {
        Some(uri) => format!(
            "start the libvirtd of {uri} (of a stack: cargo xtask restart --dir DIR libvirtd)"
        ),
        None => {
            "start libvirtd (systemctl start libvirtd) and see journalctl -u libvirtd".to_owned()
        }
    };
    program("libvirt", &info.libvirt, &advice)
}

fn qemu(part: &Part) -> Finding {
    program(
        "qemu",
        part,
        "install QEMU for this machine (apt install qemu-system-x86 qemu-utils)",
    )
}

fn tapmanager(part: &Part) -> Finding {
    let advice =
        "start it (systemctl start vmlet-tapmanager) and see journalctl -u vmlet-tapmanager";
    program("tapmanager", part, advice)
}

fn program(check: &'static str, part: &Part, advice: &str) -> Finding {
    match part {
        Part::Works(version) if version.is_empty() => Finding::ok(check, "answers"),
        Part::Works(version) => Finding::ok(check, version),
        Part::Broken(error) => Finding::fail(check, error, advice),
        Part::Unknown => {
            let what = "the daemon does not report it";
            Finding::warn(
                check,
                what,
                "repair what else is found first; else see journalctl -u vmlet",
            )
        }
    }
}

/// The daemon's verdict on the network, from its facts or else from its condition.
fn network(answers: &Answers) -> Option<Finding> {
    let condition = answers.conditions.iter().find(|c| c.name == "NetworkReady");
    let (is_ready, message, made_by) = match (&answers.info.network, condition) {
        (Some(n), _) => (n.ready, n.message.as_str(), n.made_by.as_str()),
        (None, Some(condition)) => (condition.is_met, condition.message.as_str(), ""),
        (None, None) => return None,
    };
    let advice = "repair the CNI configuration that the message names; new pods wait for it";
    Some(match (is_ready, made_by) {
        (true, "") => Finding::ok("network", "pods can be given a network"),
        (true, made_by) => Finding::ok("network", made_by),
        (false, _) => Finding::fail("network", message, advice),
    })
}

fn cni_config(dir: &CniDir) -> Finding {
    let check = "cni config";
    let path = dir.path.display();
    let advice = "install a network plugin, or write a .conflist there";
    match dir.files {
        None => Finding::fail(check, format!("{path} cannot be read"), advice),
        Some(0) => Finding::fail(check, format!("{path} holds no configuration"), advice),
        Some(n) => Finding::ok(check, format!("{path}, {n} file{}", plural(n))),
    }
}

fn cni_plugins(dirs: &[CniDir]) -> Option<Finding> {
    let check = "cni plugins";
    if dirs.is_empty() {
        return None;
    }
    let shown: Vec<_> = dirs.iter().map(|d| d.path.display().to_string()).collect();
    let found: Vec<_> = dirs
        .iter()
        .filter_map(|d| {
            d.files
                .filter(|n| *n > 0)
                .map(|n| format!("{}, {n}", d.path.display()))
        })
        .collect();
    Some(if found.is_empty() {
        let advice = "install the reference plugins (apt install containernetworking-plugins)";
        Finding::fail(check, format!("none in {}", shown.join(", ")), advice)
    } else {
        Finding::ok(check, found.join("; "))
    })
}

fn tun(device: &Device) -> Finding {
    let check = "tun";
    let advice = "modprobe tun; in a container, pass /dev/net/tun in";
    match device {
        Device::Usable => Finding::ok(check, "/dev/net/tun opens"),
        Device::Missing => Finding::fail(check, "no /dev/net/tun: VMs get no network", advice),
        Device::Denied => {
            let advice = "run this as root (sudo vmletctl doctor)";
            Finding::warn(check, "no access to /dev/net/tun", advice)
        }
        Device::Broken(error) => Finding::fail(
            check,
            format!("/dev/net/tun does not open: {error}"),
            advice,
        ),
    }
}

fn kernel(module: &'static str, feature: Feature) -> Finding {
    // nftables serves some plugins only; the other two carry every pod.
    let is_needed = module != "nf_tables";
    match feature {
        Feature::Present => Finding::ok(module, "in the kernel"),
        Feature::Loadable => Finding::ok(module, "a module, loaded when it is needed"),
        Feature::Absent if is_needed => {
            let advice = format!("boot a kernel that has {module}");
            Finding::fail(module, "not in this kernel: pods get no network", advice)
        }
        Feature::Absent => {
            let advice = "boot a kernel that has it, or use plugins that work with iptables alone";
            Finding::warn(
                module,
                "not in this kernel: published ports may not work",
                advice,
            )
        }
        Feature::Unknown => {
            let what = "the node does not show whether the kernel has it";
            Finding::warn(
                module,
                what,
                format!("if pods get no network, try modprobe {module}"),
            )
        }
    }
}

fn cgroup(cgroup: Cgroup) -> Finding {
    match cgroup {
        Cgroup::V2 => Finding::ok("cgroup", "version 2"),
        Cgroup::V1 => Finding::ok("cgroup", "version 1"),
        Cgroup::Absent => {
            let advice = "mount the cgroup file system at /sys/fs/cgroup";
            Finding::fail(
                "cgroup",
                "none mounted: limits of pods would not hold",
                advice,
            )
        }
    }
}

/// There is none on a node without AppArmor.
fn apparmor(found: &AppArmor) -> Vec<Finding> {
    let check = "apparmor";
    let load = "install deploy/apparmor/vmlet-qemu as /etc/apparmor.d/vmlet-qemu, and load it: \
        apparmor_parser --replace /etc/apparmor.d/vmlet-qemu; it holds for machines that start afterwards";
    let profile = match found.profile {
        State::Disabled => return Vec::new(),
        State::Enforced => Finding::ok(check, "the profile libvirt-vmlet confines QEMU"),
        State::Complaining => Finding::warn(
            check,
            "the profile libvirt-vmlet does not confine QEMU: it only logs",
            "aa-enforce /etc/apparmor.d/vmlet-qemu",
        ),
        State::Absent => Finding::warn(
            check,
            "nothing confines QEMU: the profile libvirt-vmlet is not loaded",
            load,
        ),
        State::Unknown => Finding::warn(
            check,
            "the kernel does not show whether the profile libvirt-vmlet is loaded",
            "run this on the node as root (sudo vmletctl doctor), with /sys/kernel/security mounted",
        ),
    };
    let libvirtd = match found.libvirtd {
        Include::NoProfile => None,
        Include::Allows => Some(Finding::ok(
            check,
            "the profile of libvirtd allows vmwrapper",
        )),
        Include::Missing => Some(Finding::warn(
            check,
            "the profile of libvirtd does not name vmwrapper: no machine starts where it holds",
            "add the line of deploy/apparmor/usr.sbin.libvirtd to \
                /etc/apparmor.d/local/usr.sbin.libvirtd, and load the profile: apparmor_parser \
                --replace /etc/apparmor.d/usr.sbin.libvirtd",
        )),
        Include::Unreadable => Some(Finding::warn(
            check,
            "/etc/apparmor.d/local/usr.sbin.libvirtd cannot be read",
            "run this as root (sudo vmletctl doctor)",
        )),
    };
    let findings = [profile].into_iter().chain(daemon_profile(found.daemon));
    findings.chain(libvirtd).collect()
}

/// Nothing where it is not installed, or the kernel shows no profiles.
fn daemon_profile(state: Option<State>) -> Option<Finding> {
    let check = "apparmor";
    match state? {
        State::Enforced => Some(Finding::ok(
            check,
            "the profile vmlet, of the daemon, is loaded",
        )),
        State::Complaining => Some(Finding::warn(
            check,
            "the profile vmlet does not confine the daemon: it only logs",
            "aa-enforce /etc/apparmor.d/vmlet",
        )),
        State::Absent => Some(Finding::warn(
            check,
            "nothing confines the daemon: its profile is installed and not loaded",
            "apparmor_parser --replace /etc/apparmor.d/vmlet, and restart vmlet: machines run on",
        )),
        State::Disabled | State::Unknown => None,
    }
}

/// There is no finding when the daemon does not report where its images are.
fn disk(facts: &Facts) -> Option<Finding> {
    let disk = facts.disk.as_ref()?;
    let free = disk.available_bytes;
    let shown = match free {
        GIB.. => format!("{}.{} GiB", free / GIB, free % GIB * 10 / GIB),
        _ => format!("{} MiB", free / MIB),
    };
    let what = format!("{shown} free in {}", disk.directory.display());
    let advice = "remove pods and images that are not needed, or give it a larger disk";
    Some(match free {
        DISK_WARN.. => Finding::ok("disk", what),
        DISK_FAIL.. => Finding::warn("disk", what, advice),
        _ => Finding::fail("disk", what, advice),
    })
}

const fn plural(n: usize) -> &'static str {
    if n == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests;
