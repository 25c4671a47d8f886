//! All verbs: what each takes can be completed, and what each does can be followed.
//!
//! Invariant: what is left out is in a list, with the reason; an entry of a list that no verb has any more
//! fails, too.
//! Failure: the verbs and their arguments that are in neither.

use std::collections::BTreeSet;

use clap::{Arg, Command, ValueHint};

use super::*;

/// Arguments that no list of names is for. `*`: of any verb.
const FREE: &[(&str, &str, &str)] = &[
    ("*", "request_timeout", "a time"),
    ("*", "impersonate", "the API server has no list of users"),
    (
        "*",
        "impersonate_groups",
        "the API server has no list of groups",
    ),
    ("*", "endpoint", "a socket, with or without a scheme"),
    ("*", "node_endpoint", "a socket, with or without a scheme"),
    ("list", "selector", "an expression"),
    ("list", "field_selector", "an expression"),
    ("logs", "tail", "a number"),
    ("logs", "since", "a time"),
    ("image pull", "nodes", "an expression"),
    ("image update", "pin", "digests, which image versions shows"),
    ("image upload", "name", "a new name"),
    ("create vm", "name", "a new name"),
    ("create vm", "cpus", "a number"),
    ("create vm", "memory", "a size"),
    ("create vm", "disk_size", "a size"),
    ("create vm", "volume", "a new name, before that of a claim"),
    ("create vm", "user_data", "few users may list Secrets"),
    ("create vm", "ssh_key", "a key, or a file"),
    (
        "create vm",
        "network",
        "a kind that need not be installed, in any namespace",
    ),
    ("create vm", "mac", "an address"),
    ("create vm", "hostname", "a new name"),
    ("create vm", "readiness_probe", "an expression"),
    ("create vm", "label", "an expression"),
    ("import", "name", "a new name"),
    ("import", "image", "a new name"),
    ("import", "networks", "names of the package"),
    (
        "import",
        "volumes",
        "names of the package, before that of a claim",
    ),
    ("import", "boot_disk", "names of the package"),
    ("import", "configuration", "names of the package"),
    ("group add", "tier", "a number"),
    ("stop", "grace_period", "a time"),
    ("clone", "clone", "a new name"),
    ("publish", "to", "a name in a registry"),
    (
        "recover",
        "names",
        "machines that the cluster does not know",
    ),
    ("recover", "disk", "disks that the cluster does not know"),
    ("backup create", "backup", "a new name"),
    ("backup create", "target", "configured on nodes"),
    ("backup create", "quiesce", "a time"),
    ("backup create", "description", "a text"),
    ("restore", "machine", "a new name"),
    ("snapshot", "snapshot", "a new name"),
    ("snapshot", "quiesce", "a time"),
    ("snapshot", "description", "a text"),
    ("console", "container", "few pods have several"),
    ("console", "escape", "a key"),
    ("port-forward", "ports", "numbers"),
    ("port-forward", "stdio", "a number"),
    ("ssh", "command", "a command of the guest"),
    ("ssh", "local_ssh_opts", "options of another program"),
    ("scp", "local_ssh_opts", "options of another program"),
    ("ssh-config", "domain", "a new name"),
    ("try", "image", "a name in a registry"),
    ("try", "console", "a text"),
    ("try", "cpu", "a number"),
    ("try", "memory", "a size"),
    ("try", "name", "a new name"),
    ("try", "timeout", "a time"),
    (
        "*",
        "namespace",
        "of pods of this node, which are found by any namespace",
    ),
    ("node logs", "tail", "a number"),
    ("node console", "escape", "a key"),
    ("node stop", "timeout", "a time"),
    ("node pull", "name", "a name in a registry"),
];

/// Verbs without `--watch` and `--follow`.
const ENDING: &[(&str, &str)] = &[
    (
        "image list",
        "one look; image pull shows an image on its way",
    ),
    (
        "image pull",
        "shows the progress until the nodes have the image",
    ),
    (
        "image upload",
        "draws the progress until the nodes have the image",
    ),
    ("image versions", "one look, with the progress of pulls"),
    (
        "image update",
        "is done when it ends; image versions shows what follows",
    ),
    ("export", "draws the progress until the file is complete"),
    (
        "publish",
        "draws the progress until the registry has the image",
    ),
    (
        "recover",
        "says of each machine what becomes of it; list --watch follows them",
    ),
    (
        "snapshots",
        "one look; snapshot --watch and revert --watch follow one",
    ),
    (
        "backup list",
        "one look; backup create --watch and backup verify --watch follow one",
    ),
    ("console", "follows the console until it is left"),
    (
        "port-forward",
        "carries connections until it is interrupted",
    ),
    ("ssh", "runs another program"),
    ("scp", "runs another program"),
    ("ssh-config", "one look"),
    ("try", "prints each step until the guest is up"),
    ("uninstall", "one look"),
    ("version", "of this program"),
    ("completion", "of this program"),
    (
        "group add",
        "is done when it ends; group status --watch follows the members",
    ),
    (
        "group remove",
        "is done when it ends; group status --watch follows the members",
    ),
    ("node run", "follows the console until the guest has ended"),
    ("node ps", "one look"),
    ("node console", "follows the console until it is left"),
    ("node stop", "ends when the guest has"),
    ("node rm", "ends when the pod is removed"),
    ("node images", "one look, with the progress of pulls"),
    ("node pull", "draws the progress until the image is there"),
    ("node doctor", "one look"),
    ("node manifests", "writes what the node has, and ends"),
];

/// A verb that does something, with its full name.
struct Verb {
    name: String,
    command: Command,
}

/// All but those that only our own programs call, and the short forms of verbs of the node.
fn verbs() -> Vec<Verb> {
    let mut root = args::command();
    root.build();
    let mut open = vec![Verb {
        name: String::new(),
        command: root,
    }];
    let mut found = Vec::new();
    while let Some(verb) = open.pop() {
        if !verb.command.has_subcommands() {
            found.push(verb);
            continue;
        }
        for command in verb.command.get_subcommands() {
            let name = format!("{} {}", verb.name, command.get_name());
            let name = name.trim().to_owned();
            let is_short = name != "node" && OF_THE_NODE.contains(&name.as_str());
            if is_short || command.is_hide_set() || command.get_name() == "help" {
                continue;
            }
            let command = command.clone();
            open.push(Verb { name, command });
        }
    }
    found
}

/// Whether candidates are offered for a value.
fn is_completed(verb: &str, arg: &Arg) -> bool {
    let paths = [ValueHint::AnyPath, ValueHint::FilePath, ValueHint::DirPath];
    !arg.get_possible_values().is_empty()
        || paths.contains(&arg.get_value_hint())
        || kind(verb, arg.get_id().as_str()).is_some()
}

/// The arguments of a verb that take a value and are shown.
fn values(verb: &Verb) -> impl Iterator<Item = &Arg> {
    let all = verb.command.get_arguments();
    all.filter(|arg| arg.get_action().takes_values() && !arg.is_hide_set())
}

fn is_free(verb: &str, arg: &str) -> bool {
    let is_it = |(of, name, _): &(&str, &str, &str)| (*of == "*" || *of == verb) && *name == arg;
    FREE.iter().any(is_it)
}

#[test]
fn what_a_verb_takes_is_completed_or_free_for_a_reason() {
    let verbs = verbs();
    assert!(verbs.len() > 30, "{}", verbs.len());
    let mut open = Vec::new();
    for verb in &verbs {
        for arg in values(verb) {
            let id = arg.get_id().as_str();
            if !is_completed(&verb.name, arg) && !is_free(&verb.name, id) {
                open.push(format!("{}: {id}", verb.name));
            }
        }
    }
    assert!(open.is_empty(), "neither completed nor in FREE: {open:#?}");
    let is_used = |of: &str, name: &str| {
        let mut of_it = verbs.iter().filter(|verb| of == "*" || verb.name == of);
        of_it.any(|verb| {
            let mut all = values(verb);
            all.any(|arg| arg.get_id() == name && !is_completed(&verb.name, arg))
        })
    };
    let entries: BTreeSet<_> = FREE.iter().map(|(of, name, _)| (of, name)).collect();
    assert_eq!(entries.len(), FREE.len(), "an entry of FREE stands twice");
    let stale = FREE.iter().filter(|(of, name, _)| !is_used(of, name));
    let stale: Vec<_> = stale.collect();
    assert!(stale.is_empty(), "no verb takes these any more: {stale:#?}");
}

#[test]
fn what_a_verb_does_is_followed_or_ends_for_a_reason() {
    let is_followed = |verb: &Verb| {
        let mut all = verb.command.get_arguments();
        all.any(|arg| ["watch", "follow"].contains(&arg.get_id().as_str()))
    };
    let ends = |verb: &Verb| ENDING.iter().any(|(name, _)| *name == verb.name);
    let verbs = verbs();
    let open = verbs
        .iter()
        .filter(|verb| !is_followed(verb) && !ends(verb));
    let open: Vec<_> = open.map(|verb| verb.name.as_str()).collect();
    assert!(open.is_empty(), "neither --watch nor in ENDING: {open:#?}");
    let names = ENDING.iter().map(|(name, _)| *name);
    let entries: BTreeSet<_> = names.clone().collect();
    assert_eq!(
        entries.len(),
        ENDING.len(),
        "an entry of ENDING stands twice"
    );
    let stale = names.filter(|name| {
        let mut all = verbs.iter();
        !all.any(|verb| verb.name == *name && !is_followed(verb))
    });
    let stale: Vec<_> = stale.collect();
    assert!(
        stale.is_empty(),
        "no such verb, or it is followed: {stale:#?}"
    );
}
