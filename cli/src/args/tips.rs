//! Tips for verbs that are not ours: users of virtctl and kubectl type what they know.
//!
//! Invariant: a tip names a command that does what was asked for; a verb that only looks alike is
//! not offered.
//! Failure: none; without a tip clap's own message stands.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Verbs of other tools, and what does the same here.
const ELSEWHERE: [(&str, &str); 12] = [
    (
        "scp",
        "kubectl cp FILE POD:PATH copies files; the pod of a machine has its name",
    ),
    (
        "cp",
        "kubectl cp FILE POD:PATH copies files; the pod of a machine has its name",
    ),
    (
        "exec",
        "kubectl exec -it POD -- COMMAND; the pod of a machine has its name",
    ),
    (
        "attach",
        "kubectl attach -it POD is the serial console; the pod of a machine has its name",
    ),
    (
        "port-forward",
        "kubectl port-forward pod/POD PORT; the pod of a machine has its name",
    ),
    (
        "expose",
        "kubectl expose pod POD --port PORT, or a Service that selects the labels of spec.template",
    ),
    (
        "migrate",
        "machines do not move to other nodes while they run: docs/from-kubevirt.md",
    ),
    (
        "vnc",
        "machines have a serial console: kubectl attach -it POD",
    ),
    ("get", "list shows machines"),
    ("apply", "kubectl apply -f FILE"),
    ("edit", "kubectl edit vm NAME"),
    ("reset", "restart --force"),
];

/// Replaces tips by better ones.
pub(super) fn corrected(mut error: clap::Error) -> clap::Error {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    let Some(ContextValue::String(verb)) = error.get(ContextKind::InvalidSubcommand) else {
        return error;
    };
    let verb = verb.clone();
    let elsewhere = ELSEWHERE.iter().find(|(name, _)| *name == verb);
    if let Some((_, tip)) = elsewhere {
        error.remove(ContextKind::SuggestedSubcommand);
        let tip = ContextValue::StyledStrs(vec![(*tip).into()]);
        error.insert(ContextKind::Suggested, tip);
    } else if !is_near(&verb, error.get(ContextKind::SuggestedSubcommand)) {
        error.remove(ContextKind::SuggestedSubcommand);
    }
    error
}

/// Whether a suggested verb has the same letters but for two: a slip of the fingers.
fn is_near(verb: &str, suggested: Option<&ContextValue>) -> bool {
    let names = match suggested {
        Some(ContextValue::String(name)) => std::slice::from_ref(name),
        Some(ContextValue::Strings(names)) => names.as_slice(),
        _ => return false,
    };
    names.iter().any(|name| differing_letters(verb, name) <= 2)
}

/// Letters that only one of the two words has, whatever their order.
fn differing_letters(one: &str, other: &str) -> usize {
    let mut rest: Vec<char> = other.chars().collect();
    let missing = one.chars().filter(|letter| {
        let at = rest.iter().position(|known| known == letter);
        at.map(|at| rest.swap_remove(at)).is_none()
    });
    let missing = missing.count();
    missing + rest.len()
}

#[cfg(test)]
mod tests {
    use crate::args::command;

    fn message(verb: &str) -> String {
        let error = command().try_get_matches_from(["vmletctl", verb]);
        super::corrected(error.unwrap_err()).to_string()
    }

    #[test]
    fn verbs_of_other_tools_are_answered_by_what_does_the_same() {
        let scp = message("scp");
        assert!(scp.contains("kubectl cp") && !scp.contains("stop"), "{scp}");
        let expose = message("expose");
        assert!(expose.contains("kubectl expose pod"), "{expose}");
    }

    #[test]
    fn a_slip_is_corrected_and_another_word_is_not() {
        assert!(message("lsit").contains("'list'"), "{}", message("lsit"));
        assert!(message("strat").contains("'start'"), "{}", message("strat"));
        let far = message("suspicion");
        assert!(!far.contains("similar"), "{far}");
    }
}
