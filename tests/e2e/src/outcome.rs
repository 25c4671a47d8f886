//! What the error of a failed test means: a defect, or a program that is not ours and was late.
//!
//! The runner repeats a test only if its error has the mark of [`Late`] and no mark of a defect
//! (`xtask/src/suite/retry.rs`). Beside this module only the start of a stack makes one
//! (`xtask/src/stack/bring_up.rs`).
//!
//! Invariant: every error is a defect, a missed deadline of ours as well, unless a program that runs
//! without ours is known to have missed its own: an API server with its etcd. kubelet and libvirtd
//! wait for our programs, so that their deadlines are no excuse.
//! Failure: none.

use std::fmt;

use anyhow::{Result, anyhow};

/// The mark of a defect.
const WRONG: &str = "[wrong]";

/// How kubectl prints that the API server or its etcd was late.
const API_SERVER_LATE: [&str; 4] = [
    "Error from server (Timeout)",
    "etcdserver: leader changed",
    "etcdserver: request timed out",
    "TLS handshake timeout",
];

/// What leads kubectl through the API server to a kubelet and so to our programs, or lets it wait
/// for what they do.
const BEYOND_API_SERVER: [&str; 6] = ["attach", "cp", "exec", "logs", "port-forward", "wait"];

/// The API server did not answer in its time: the context of an error.
#[derive(Debug)]
pub(crate) struct Late;

impl fmt::Display for Late {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("[late: kube-apiserver]")
    }
}

/// What was never to be the case.
#[derive(Debug)]
struct Wrong(String);

impl fmt::Display for Wrong {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{WRONG} {}", self.0)
    }
}

impl std::error::Error for Wrong {}

/// States what must be the case at each look of [`eventually`](crate::eventually), also before the
/// event that it awaits: a violation ends the wait at once, and the test is not repeated.
pub fn always(holds: bool, violation: impl FnOnce() -> String) -> Result<()> {
    if holds {
        return Ok(());
    }
    Err(anyhow!(Wrong(violation())))
}

/// Whether an error is a violation of what must always be the case.
pub(crate) fn is_violation(error: &anyhow::Error) -> bool {
    error.is::<Wrong>()
}

/// Adds the mark of [`Late`] to an error by which the API server itself says so.
pub(crate) fn classified(error: anyhow::Error) -> anyhow::Error {
    let said_so = error.downcast_ref().is_some_and(is_late_answer);
    if said_so && !error.is::<Late>() {
        return error.context(Late);
    }
    error
}

/// One error of several tests that ran at the same time: only if all of them were late, the whole is.
pub(crate) fn joined(errors: &[(String, anyhow::Error)]) -> anyhow::Error {
    let all_late = errors.iter().all(|(_, error)| is_late(error));
    let texts = errors
        .iter()
        .map(|(name, error)| format!("{name}: {error:?}"));
    let text = texts.collect::<Vec<_>>().join("\n\n");
    if all_late {
        return anyhow!(text).context(Late);
    }
    anyhow!("{text}\n\n{WRONG}")
}

/// Whether the error output of a kubectl that failed says that the API server was late.
pub(crate) fn is_late_kubectl(arguments: &[&str], stderr: &str) -> bool {
    let leads_beyond = arguments
        .iter()
        .any(|word| BEYOND_API_SERVER.contains(word) || word.contains("/proxy"));
    !leads_beyond && API_SERVER_LATE.iter().any(|words| stderr.contains(words))
}

fn is_late(error: &anyhow::Error) -> bool {
    error.is::<Late>() && !error.is::<Wrong>()
}

/// An answer of the API server: of its own deadline, or that of etcd.
fn is_late_answer(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    status.reason == "Timeout" || status.message.starts_with("etcdserver: ")
}

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use kube::core::Status;

    use super::*;

    const MARK: &str = "[late: kube-apiserver]";

    fn answer(reason: &str, message: &str) -> anyhow::Error {
        let status = Status::failure(message, reason);
        kube::Error::Api(Box::new(status)).into()
    }

    #[test]
    fn only_the_api_servers_own_deadlines_are_marked() {
        let mark = |error| format!("{:?}", classified(error)).contains(MARK);
        assert!(mark(answer("Timeout", "request did not complete in time")));
        let etcd = answer("InternalError", "etcdserver: request timed out");
        assert!(mark(etcd.context("create a pod").context("a case")));
        assert!(!mark(answer("NotFound", "pods \"a\" not found")));
        assert!(!mark(answer(
            "InternalError",
            "kubelet: context deadline exceeded"
        )));
        assert!(!mark(anyhow!("not within 60s: i/o timeout")));
    }

    #[test]
    fn a_mark_survives_context_and_is_made_once() {
        let late = classified(answer("Timeout", "")).context("the pod: not within 60s");
        let text = format!("{:?}", classified(late));
        assert_eq!(text.matches(MARK).count(), 1, "{text}");
    }

    #[test]
    fn one_defect_among_several_errors_is_a_defect() {
        let late = || ("a".to_owned(), classified(answer("Timeout", "")));
        let defect = ("b".to_owned(), anyhow!("two guests had the disk"));
        let text = |errors: &[_]| format!("{:?}", joined(errors));
        assert!(!text(&[late(), late()]).contains(WRONG));
        assert!(text(&[late(), defect]).contains(WRONG));
    }

    #[test]
    fn a_violation_is_marked_and_recognised_behind_context() {
        always(true, String::new).unwrap();
        let error = always(false, || "two on one node".to_owned()).unwrap_err();
        assert_eq!(error.to_string(), "[wrong] two on one node");
        let violation = Err::<(), _>(error).context("a case").unwrap_err();
        assert!(is_violation(&violation));
        assert!(!is_violation(&anyhow!("two on one node")));
    }

    #[test]
    fn what_leads_to_our_programs_is_never_late() {
        let etcd = "Error from server: etcdserver: request timed out";
        assert!(is_late_kubectl(&["get", "pods"], etcd));
        assert!(!is_late_kubectl(&["exec", "vm", "--", "true"], etcd));
        assert!(!is_late_kubectl(&["wait", "pod/vm"], etcd));
        let raw = "/api/v1/nodes/n/proxy/stats/summary";
        assert!(!is_late_kubectl(&["get", "--raw", raw], etcd));
        let ours = "error: timed out waiting for the condition on pods/vm";
        assert!(!is_late_kubectl(&["delete", "pod/vm"], ours));
    }
}
