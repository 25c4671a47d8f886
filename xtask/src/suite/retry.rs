//! Which failed tests may run once more: those that missed a deadline of a program which is not
//! ours.
//!
//! kubelet, etcd, containerd and the API server have deadlines of seconds, which a machine that
//! is paused for a moment tolerates.
//!
//! Invariant: a leak, a panic, a signal or a failed assertion is never repeated, even when a
//! deadline passed as well. What passes only when it is repeated is counted, listed in
//! `target/unsteady.json`, and a defect to look into.
//! Failure: none.

/// More tests than this do not miss a deadline by chance: then the run has failed.
pub(super) const MOST: usize = 2;

/// The message of a wait for an event whose deadline has passed: see `e2e::eventually`.
const OUR_WAITS: &str = "not within";

/// How programs that are not ours say that a deadline has passed.
const FOREIGN: [&str; 7] = [
    "context deadline exceeded",
    "etcdserver: request timed out",
    "TLS handshake timeout",
    "timed out waiting for the condition",
    "i/o timeout",
    "Client.Timeout exceeded",
    "operation timed out",
];

/// What no deadline excuses in an error.
const NEVER: [&str; 5] = ["left behind", "leaked", "(signal", "signal:", "assertion"];

/// The reason for which a test that failed with this output may run once more, if there is one.
pub(super) fn reason(section: &str) -> Option<&'static str> {
    // What a test prints before its error are ends of logs, in which any deadline may be mentioned.
    let (_, error) = section.rsplit_once("Error: ")?;
    if section.contains("panicked at") || NEVER.iter().any(|word| error.contains(word)) {
        return None;
    }
    let mut reasons = [OUR_WAITS].into_iter().chain(FOREIGN);
    reasons.find(|reason| error.contains(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missed_deadlines_are_repeated() {
        let late =
            "Error: GET http://10.0.0.1: not within 60s\n\nCaused by:\n    curl: exit status: 28";
        assert_eq!(reason(late), Some("not within"));
        let foreign = "Error: kubectl: etcdserver: request timed out";
        assert_eq!(reason(foreign), Some("etcdserver: request timed out"));
        for failed in [
            "Error: two guests had the disk",
            "--- end of kubelet.log\ncontext deadline exceeded\nError: two guests had the disk",
            "not within 60s",
            "thread 'main' panicked at x.rs:1: not within 60s",
            "Error: xtask [\"down\"]: leaked: link tap0; not within 60s",
            "Error: not within 60s: ended with signal: 9 (SIGKILL)",
            "Error: not within 60s: exit status: 2 (signal 6)",
        ] {
            assert_eq!(reason(failed), None, "{failed}");
        }
    }
}
