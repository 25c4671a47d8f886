//! How the kernel keeps guests of one node apart: hardware threads, merged pages, swap, nested virtualisation and
//! the defects of processors that it knows.
//!
//! Invariant: nothing is changed. All of it is the administrator's decision, so that no finding fails.
//! Failure: what the node does not show has no finding.

use std::fs;
use std::path::Path;

use super::Finding;

/// The page that describes each of them.
const PAGE: &str = "docs/host-hardening.md";

const THREADS: &str = "sys/devices/system/cpu/smt/active";
const MERGING: &str = "sys/kernel/mm/ksm/run";
const SWAPS: &str = "proc/swaps";
const NESTED: [&str; 2] = [
    "sys/module/kvm_intel/parameters/nested",
    "sys/module/kvm_amd/parameters/nested",
];
const DEFECTS: &str = "sys/devices/system/cpu/vulnerabilities";

/// What was found; `None` where the node does not show it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Hardening {
    /// Two guests can run on one core at a time.
    pub(super) threads: Option<bool>,
    /// The kernel merges equal pages of memory.
    pub(super) merging: Option<bool>,
    /// Devices and files with memory that was moved out.
    pub(super) swaps: Option<Vec<String>>,
    /// Guests can run guests.
    pub(super) nested: Option<bool>,
    /// Defects that the kernel does not mitigate.
    pub(super) defects: Option<Vec<String>>,
}

impl Hardening {
    pub(super) fn look(root: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(root.join(path)).ok();
        Self {
            threads: read(THREADS).map(|text| text.trim() == "1"),
            merging: read(MERGING).map(|text| text.trim() == "1"),
            swaps: read(SWAPS).map(|text| swaps(&text)),
            nested: NESTED.into_iter().find_map(read).map(|text| is_on(&text)),
            defects: defects(&root.join(DEFECTS)),
        }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let all = [
            self.threads.map(threads),
            self.merging.map(merging),
            self.swaps.as_deref().map(swap),
            self.nested.map(nested),
            self.defects.as_deref().map(unmitigated),
        ];
        all.into_iter().flatten().collect()
    }
}

/// Names after the line of titles.
fn swaps(text: &str) -> Vec<String> {
    let lines = text.lines().skip(1);
    let names = lines.filter_map(|line| line.split_whitespace().next());
    names.map(str::to_owned).collect()
}

/// A parameter is a number or a letter, by the kernel's version.
fn is_on(text: &str) -> bool {
    matches!(text.trim(), "1" | "Y" | "y")
}

fn defects(directory: &Path) -> Option<Vec<String>> {
    let entries = fs::read_dir(directory).ok()?.flatten();
    let is_open = |path: &Path| fs::read_to_string(path).is_ok_and(|text| is_vulnerable(&text));
    let open = entries.filter(|entry| is_open(&entry.path()));
    let mut names: Vec<_> = open
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    Some(names)
}

/// Of the host, or for its guests.
fn is_vulnerable(text: &str) -> bool {
    let state = text.strip_prefix("KVM: ").unwrap_or(text);
    state.starts_with("Vulnerable")
}

fn threads(active: bool) -> Finding {
    let check = "threads";
    if !active {
        return Finding::ok(check, "one hardware thread per core");
    }
    Finding::warn(
        check,
        "SMT is on: guests of two tenants can share a core",
        format!("where tenants do not trust each other, turn it off (nosmt): {PAGE}"),
    )
}

fn merging(on: bool) -> Finding {
    let check = "merged pages";
    if !on {
        return Finding::ok(check, "the kernel merges no pages (KSM is off)");
    }
    Finding::warn(
        check,
        "KSM is on: pages of programs that ask for it are merged, and times show what others have in memory",
        format!("echo 2 > /sys/kernel/mm/ksm/run, and disable ksmtuned: {PAGE}"),
    )
}

fn swap(devices: &[String]) -> Finding {
    let check = "swap";
    if devices.is_empty() {
        return Finding::ok(check, "none");
    }
    Finding::warn(
        check,
        format!("memory of guests can get to {}", devices.join(", ")),
        format!("swapoff, or encrypt it with a key that no disk has: {PAGE}"),
    )
}

fn nested(on: bool) -> Finding {
    let check = "nested";
    if !on {
        return Finding::ok(check, "guests run no guests of their own");
    }
    Finding::warn(
        check,
        "nested virtualisation is on: guests reach more of the kernel",
        format!(
            "unless guests need it, options kvm_intel (kvm_amd) nested=0 in /etc/modprobe.d: {PAGE}"
        ),
    )
}

fn unmitigated(defects: &[String]) -> Finding {
    let check = "processor";
    if defects.is_empty() {
        return Finding::ok(
            check,
            "the kernel knows no defect that it does not mitigate",
        );
    }
    Finding::warn(
        check,
        format!("the kernel does not mitigate {}", defects.join(", ")),
        format!(
            "install microcode and firmware of the manufacturer, and leave mitigations on: {PAGE}"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    fn found(files: &[(&str, &str)]) -> Hardening {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Hardening::look(root.path())
    }

    #[test]
    fn what_weakens_the_walls_between_guests_comes_with_advice() {
        let mut facts = found(&[
            (THREADS, "1\n"),
            (MERGING, "1\n"),
            (
                SWAPS,
                "Filename Type Size Used Priority\n/dev/dm-1 partition 4 0 -2\n",
            ),
            (NESTED[1], "1\n"),
            (
                "sys/devices/system/cpu/vulnerabilities/mds",
                "Mitigation: Clear CPU buffers; SMT vulnerable\n",
            ),
            (
                "sys/devices/system/cpu/vulnerabilities/itlb_multihit",
                "KVM: Vulnerable\n",
            ),
            (
                "sys/devices/system/cpu/vulnerabilities/l1tf",
                "Vulnerable\n",
            ),
            (
                "sys/devices/system/cpu/vulnerabilities/srbds",
                "Not affected\n",
            ),
        ]);
        let findings = facts.findings();
        assert_eq!(findings.len(), 5);
        assert!(findings.iter().all(|f| f.level == Level::Warn));
        assert!(findings.iter().all(|f| f.advice.is_some()));
        assert!(findings[2].what.ends_with("/dev/dm-1"), "{:?}", findings[2]);
        let defects = facts.defects.take().unwrap();
        assert_eq!(defects, ["itlb_multihit", "l1tf"]);
    }

    #[test]
    fn a_hardened_node_has_nothing_to_do_and_what_is_not_shown_has_no_finding() {
        let facts = found(&[
            (THREADS, "0\n"),
            (MERGING, "2\n"),
            (SWAPS, "Filename Type Size Used Priority\n"),
            (NESTED[0], "N\n"),
            (
                "sys/devices/system/cpu/vulnerabilities/mds",
                "Not affected\n",
            ),
        ]);
        let findings = facts.findings();
        assert_eq!(findings.len(), 5);
        assert!(findings.iter().all(|f| f.level == Level::Ok));
        assert_eq!(found(&[]), Hardening::default());
        assert_eq!(Hardening::default().findings(), []);
    }

    #[test]
    fn the_page_that_findings_name_exists() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(PAGE);
        assert!(page.exists(), "{}", page.display());
    }
}
