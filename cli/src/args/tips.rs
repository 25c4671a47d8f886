//! Tips for verbs that are not ours: users of virtctl and kubectl type what they know.
//!
//! Invariant: a tip names a command that does what was asked for; a verb that only looks alike is
//! not offered.
//! Failure: none; without a tip clap's own message stands.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Verbs of virtctl, virtletctl and kubectl, and what does the same here.
const ELSEWHERE: &[(&str, &str)] = &[
    // kubectl.
    (
        "cp",
        "scp copies files by ssh; kubectl cp FILE POD:PATH needs no ssh in the guest, and the pod of a machine has its name",
    ),
    (
        "exec",
        "kubectl exec -it POD -- COMMAND; the pod of a machine has its name",
    ),
    ("attach", "console NAME"),
    ("get", "list shows machines"),
    ("apply", "kubectl apply -f FILE"),
    ("edit", "kubectl edit vm NAME"),
    // virtctl.
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
        "machines have a serial console: console NAME; a VNC server in the guest is reached by port-forward NAME 5900",
    ),
    ("reset", "restart --force"),
    (
        "soft-reboot",
        "set spec.nextRestartTime with restartMode: Soft; restart makes a new pod",
    ),
    ("image-upload", "image upload FILE --name NAME --node NODE"),
    ("vmexport", "export NAME -o FILE"),
    (
        "guestfs",
        "export writes a disk to a file, publish pushes it to a registry",
    ),
    ("guestosinfo", "status NAME"),
    ("fslist", "kubectl exec POD -- df"),
    ("userlist", "kubectl exec POD -- who"),
    (
        "addvolume",
        "add the volume to spec.volumes and restart the machine",
    ),
    (
        "removevolume",
        "remove the volume from spec.volumes and restart the machine",
    ),
    (
        "memory-dump",
        "snapshot NAME --memory keeps the memory beside the disk",
    ),
    (
        "credentials",
        "kubectl exec POD -- passwd, or change the Secret of spec.bootstrap",
    ),
    (
        "adm",
        "kubectl -n vmlet-system logs shows what the programs of Vmlet log",
    ),
    // virtletctl.
    (
        "gen",
        "kubectl apply -k deploy, or the Helm chart: docs/helm.md",
    ),
    (
        "diag",
        "node doctor checks a node; kubectl -n vmlet-system logs shows what its programs log",
    ),
    (
        "virsh",
        "status NAME, or on its node: node ps, and virsh in the container libvirt of its pod vmlet-node",
    ),
    (
        "validate",
        "node doctor checks a node; try --image IMAGE boots a guest",
    ),
    (
        "install",
        "a link kubectl-vmlet to vmletctl on the PATH makes it a plugin of kubectl",
    ),
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
        let cp = message("cp");
        assert!(cp.contains("kubectl cp") && !cp.contains("stop"), "{cp}");
        let expose = message("expose");
        assert!(expose.contains("kubectl expose pod"), "{expose}");
    }

    #[test]
    fn no_verb_of_ours_is_in_the_table() {
        let command = command();
        for (verb, _) in super::ELSEWHERE {
            assert!(command.find_subcommand(verb).is_none(), "{verb}");
        }
    }

    #[test]
    fn a_slip_is_corrected_and_another_word_is_not() {
        assert!(message("lsit").contains("'list'"), "{}", message("lsit"));
        assert!(message("strat").contains("'start'"), "{}", message("strat"));
        let far = message("suspicion");
        assert!(!far.contains("similar"), "{far}");
    }
}
