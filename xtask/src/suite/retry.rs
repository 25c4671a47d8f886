//! Which failed tests may run once more: those of which the test kit knows that a program which is
//! not ours was late.
//!
//! The API server and etcd have deadlines of seconds, which a machine that is paused for a moment
//! misses. The test kit gives the error a mark then (`tests/e2e/src/outcome.rs`); the stack does so for
//! a program that does not start in its time. A text without a mark is a defect, whatever it says
//! about time: kubelet, crictl and kubectl report the same deadlines when a program of ours hangs.
//!
//! Invariant: a leak, a panic or a violated invariant is never repeated, wherever the program printed
//! it. What passes only when it is repeated is counted, listed in `target/unsteady.json`, and a defect
//! to look into.
//! Failure: none.

/// More tests than this do not miss a deadline by chance: then the run has failed.
pub(super) const MOST: usize = 2;

/// Programs which are not ours and run without ours: those whose deadlines may be missed. libvirtd is
/// none of them: it runs `vmwrapper` to learn what QEMU can do; nor is kubelet, which waits for runtimes.
const FOREIGN: [&str; 5] = [
    "containerd",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
];

/// What no deadline excuses, wherever a test program prints it.
const NEVER: [&str; 4] = ["[wrong]", "down: leaked ", "left behind: ", "panicked at"];
/// The same in the error itself: ends of logs may have it of a program that the test killed.
const NEVER_IN_ERROR: [&str; 2] = ["(signal", "signal:"];

/// The mark of an error that this program was late, if it is one of those that may be.
pub(crate) fn late_mark(program: &str) -> Option<String> {
    let foreign = FOREIGN.into_iter().find(|foreign| *foreign == program);
    foreign.map(mark)
}

/// The program because of which a test that failed may run once more, if there is one. `output` is all
/// that the test program printed, `section` what it printed about this test.
pub(super) fn late_program(output: &str, section: &str) -> Option<&'static str> {
    // What a test prints before its error are ends of logs.
    let (_, error) = section.rsplit_once("Error: ")?;
    let is_defect = NEVER.iter().any(|words| output.contains(words))
        || NEVER_IN_ERROR.iter().any(|words| error.contains(words));
    if is_defect {
        return None;
    }
    let mut programs = FOREIGN.into_iter();
    programs.find(|program| error.contains(&mark(program)))
}

fn mark(program: &str) -> String {
    format!("[late: {program}]")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: &str = "Error: a pod: not within 60s\n\nCaused by:\n    0: [late: kube-apiserver]\n    \
        1: GET /api/v1/pods: not within 60s";

    #[test]
    fn only_a_program_that_is_not_ours_and_was_late_is_an_excuse() {
        assert_eq!(late_program(LATE, LATE), Some("kube-apiserver"));
        let started = "Error: xtask [\"up\"]: etcd does not answer after 180 s [late: etcd]";
        assert_eq!(late_program(started, started), Some("etcd"));
        for failed in [
            "Error: two guests had the disk",
            // A deadline of ours, or one by which others report a program of ours that hangs.
            "Error: the guest runs: not within 60s",
            "Error: two machines: not within 60s\n\nCaused by:\n    two on one node",
            "Error: crictl: rpc error: code = DeadlineExceeded desc = context deadline exceeded",
            "Error: kubectl: i/o timeout",
            "Error: vmlet does not answer after 180 s [late: vmlet]",
            "--- end of a log\n[late: etcd]\nError: two guests had the disk",
            "thread 'main' panicked at x.rs:1: [late: etcd]",
        ] {
            assert_eq!(late_program(failed, failed), None, "{failed}");
        }
    }

    #[test]
    fn a_defect_anywhere_in_the_output_is_no_matter_of_deadlines() {
        for before in [
            "--- down: xtask [\"down\"]: stdout: down: leaked link tap0",
            "left behind: [\"link tap0\"]",
            "thread 'a' panicked at src/x.rs:1:1:",
            "case: b: [wrong] two on one node",
        ] {
            let section = format!("{before}\n{LATE}");
            assert_eq!(late_program(&section, &section), None, "{before}");
            // Printed by another thread, outside the section of the test.
            assert_eq!(late_program(&section, LATE), None, "{before}");
        }
        let killed = format!("{LATE}: ended with signal: 9 (SIGKILL)");
        assert_eq!(late_program(&killed, &killed), None);
    }

    /// Both sides of the language.
    #[test]
    fn the_marks_are_those_of_the_test_kit() {
        let kit = include_str!("../../../tests/e2e/src/outcome.rs");
        let apiserver = late_mark("kube-apiserver").unwrap();
        for words in [NEVER[0], &apiserver] {
            assert!(kit.contains(&format!("\"{words}\"")), "{words}");
        }
        assert_eq!(late_mark("vmlet"), None);
        assert_eq!(late_mark("kubelet"), None);
        assert_eq!(late_mark("libvirtd"), None);
    }
}
