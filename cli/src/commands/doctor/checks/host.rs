//! Findings about what the daemon says of its kernel and of libvirt's offer.
//!
//! Invariant: a fact that the daemon does not state has no finding: an earlier daemon states none.
//! Failure: none.

use serde_json::Value;

use super::super::Finding;

pub(super) fn all(node: &Value) -> Vec<Finding> {
    let kernel = &node["kernel"];
    let all = [
        landlock(kernel),
        idmapped_mounts(kernel),
        offer(node, "machine type", "machineTypes"),
        offer(node, "cpu model", "cpuModels"),
        helpers(&node["helpers"]),
        vmlet_guest(&node["vmletGuest"]),
        uefi(&node["uefi"]),
        copies(&node["disks"]),
    ];
    all.into_iter().flatten().collect()
}

fn landlock(kernel: &Value) -> Option<Finding> {
    let check = "landlock";
    Some(match kernel["landlockAbi"].as_u64()? {
        0 => Finding::warn(
            check,
            "not in this kernel, or off: QEMU is not confined to the files of its machine",
            "boot a kernel with Landlock (5.13 or later), with landlock in its parameter lsm=",
        ),
        version => Finding::ok(check, format!("version {version}")),
    })
}

fn idmapped_mounts(kernel: &Value) -> Option<Finding> {
    let check = "idmapped";
    if kernel["idmappedMounts"].as_bool()? {
        return Some(Finding::ok(check, "the kernel has idmapped mounts"));
    }
    Some(Finding::warn(
        check,
        "no idmapped mounts: shared directories of root are accessed as shares.uid",
        "boot a kernel that has them (5.12 or later)",
    ))
}

fn helpers(helpers: &Value) -> Option<Finding> {
    let check = "helpers";
    if helpers["apart"].as_bool()? {
        let found = "programs that read images have namespaces of their own";
        return Some(Finding::ok(check, found));
    }
    let why = helpers["message"].as_str().unwrap_or_default();
    Some(Finding::warn(
        check,
        format!("programs that read images share the namespaces of the daemon: {why}"),
        "let the daemon make namespaces and mounts (RestrictNamespaces= of its unit, its AppArmor \
         profile, its securityContext), with Linux 5.9 or later",
    ))
}

fn vmlet_guest(program: &Value) -> Option<Finding> {
    let check = "vmlet-guest";
    if program["present"].as_bool()? {
        return Some(Finding::ok(check, "guests get it by their seed images"));
    }
    let why = program["message"].as_str().unwrap_or_default();
    Some(Finding::warn(
        check,
        format!("guests do not get it, and commands in them need another agent: {why}"),
        "install vmlet-guest there, or name it in vm.guest_agent",
    ))
}

/// Both are well: most images boot by a BIOS.
fn uefi(firmware: &Value) -> Option<Finding> {
    let check = "uefi";
    if firmware["present"].as_bool()? {
        return Some(Finding::ok(check, "machines can boot by UEFI"));
    }
    let why = firmware["message"].as_str().unwrap_or_default();
    let found = format!("machines boot by a BIOS alone: {why}");
    Some(Finding::ok(check, found))
}

/// Both are well: disks work on every file system.
fn copies(disks: &Value) -> Option<Finding> {
    let check = "copies";
    let found = if disks["shareBlocks"].as_bool()? {
        "copies of disks share blocks: yes"
    } else {
        "copies of disks share blocks: no, clones are written in full (XFS with reflink and btrfs share)"
    };
    Some(Finding::ok(check, found))
}

/// The daemon keeps a list empty until libvirt has answered, about which there are findings.
fn offer(node: &Value, check: &'static str, list: &str) -> Option<Finding> {
    let names = node[list].as_array()?.iter().filter_map(Value::as_str);
    let names: Vec<_> = names.collect();
    let newest = names.last()?;
    Some(match names.len() {
        1 => Finding::ok(check, *newest),
        n => Finding::ok(check, format!("{n}, the last is {newest}")),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::Level;
    use super::*;

    #[test]
    fn what_the_kernel_lacks_comes_with_advice() {
        let node = json!({
            "kernel": { "landlockAbi": 0, "idmappedMounts": false },
            "machineTypes": ["pc-q35-7.1", "pc-q35-7.2"], "cpuModels": ["qemu64"],
            "helpers": { "apart": false, "message": "not permitted" },
            "vmletGuest": { "present": false, "message": "failed to find /x" },
            "uefi": { "present": false, "message": "install the package ovmf" },
            "disks": { "shareBlocks": false },
        });
        let found: Vec<_> = all(&node).iter().map(|f| (f.check, f.level)).collect();
        let expected = [
            ("landlock", Level::Warn),
            ("idmapped", Level::Warn),
            ("machine type", Level::Ok),
            ("cpu model", Level::Ok),
            ("helpers", Level::Warn),
            ("vmlet-guest", Level::Warn),
            ("uefi", Level::Ok),
            ("copies", Level::Ok),
        ];
        assert_eq!(found, expected);
        let guest = &all(&node)[5];
        assert!(
            guest.what.ends_with(": failed to find /x"),
            "{}",
            guest.what
        );
        assert!(all(&node)[6].what.ends_with("the package ovmf"));
        assert_eq!(all(&node)[2].what, "2, the last is pc-q35-7.2");
    }

    #[test]
    fn whether_copies_share_blocks_is_no_defect() {
        let found = |disks| all(&json!({ "disks": disks })).pop();
        for (is_shared, words) in [(true, "blocks: yes"), (false, "blocks: no")] {
            let copies = found(json!({ "shareBlocks": is_shared })).unwrap();
            assert_eq!(copies.level, Level::Ok);
            assert!(copies.what.contains(words), "{}", copies.what);
        }
        assert_eq!(found(json!({ "shareBlocks": null })), None);
    }

    #[test]
    fn what_a_daemon_does_not_say_has_no_finding() {
        for node in [
            json!(null),
            json!({}),
            json!({ "kernel": null, "cpuModels": [] }),
        ] {
            assert_eq!(all(&node), [], "{node}");
        }
        let kernel = json!({ "kernel": { "landlockAbi": 6, "idmappedMounts": null } });
        assert_eq!(all(&kernel).len(), 1);
    }
}
