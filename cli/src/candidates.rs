//! Completion of command lines: verbs and options, and the names of objects of the cluster, of entries of
//! the kubeconfig, and of pods of this node.
//!
//! Invariant: cluster and daemon are asked only when the word under the cursor can be such a name. Every
//! argument is completed, or is in a list of the tests with the reason.
//! Failure: nothing is offered and nothing is said, since a shell would show it in the middle of a
//! command line.

mod ask;
mod line;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Arg, Command};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, complete};
use clap_complete::env::CompleteEnv;

use crate::args::{self, OF_THE_NODE};
use crate::commands::completion::{PROGRAM, VARIABLE};

/// The program that kubectl runs for candidates of `kubectl vmlet`: vmletctl by another name.
const KUBECTL_PLUGIN: &str = "kubectl_complete-vmlet";
/// Cobra's `ShellCompDirectiveNoFileComp`: a name is wanted, not a file of the directory.
const NO_FILES: &str = ":4";

/// What a word is the name of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Machine,
    /// A machine behind `USER@`, which may be missing.
    Login,
    Image,
    Class,
    Snapshot,
    Backup,
    Group,
    Namespace,
    Node,
    Claim,
    StorageClass,
    /// Entries of the kubeconfig.
    Context,
    Cluster,
    User,
    /// Of this node.
    Pod,
}

/// Where names come from.
type Names = Arc<dyn Fn(Kind) -> Vec<String> + Send + Sync>;

/// Answers a shell or kubectl that requests candidates. `None`: this process is to run a command.
pub(crate) fn answer() -> Option<ExitCode> {
    let words: Vec<_> = env::args_os().collect();
    let called = words.first().map(Path::new).and_then(Path::file_name);
    if called == Some(OsStr::new(KUBECTL_PLUGIN)) {
        let names = names_for(&words);
        let printed = io::stdout().write_all(for_kubectl(words, &names).as_bytes());
        return Some(printed.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS));
    }
    let separator = words.iter().position(|word| word == "--");
    let typed: Vec<_> = words[separator.map_or(words.len(), |at| at + 1)..].to_vec();
    let description = || described(&typed, &names_for(&typed));
    let environment = CompleteEnv::with_factory(description)
        .var(VARIABLE)
        .bin(PROGRAM);
    match environment.try_complete(words, env::current_dir().ok().as_deref()) {
        Ok(false) => None,
        Ok(true) => Some(ExitCode::SUCCESS),
        Err(_) => Some(ExitCode::FAILURE),
    }
}

/// Names of the cluster that a command line chooses.
fn names_for(words: &[OsString]) -> Names {
    let place = ask::Place {
        cluster: line::cluster(words),
        daemon: line::endpoint(words),
    };
    Arc::new(move |kind| ask::names(kind, &place))
}

/// The candidates as kubectl reads them: one a line, its description behind a tab, and a directive
/// at the end. The last word is the one under the cursor.
fn for_kubectl(mut words: Vec<OsString>, names: &Names) -> String {
    if words.len() < 2 {
        words.push(OsString::new());
    }
    let mut command = described(&words, names);
    let index = words.len() - 1;
    let last = words[index].to_string_lossy().into_owned();
    // Of `--flag=value` kubectl completes the value.
    let wants_option = last.starts_with('-');
    let flag = last.split_once('=').filter(|_| wants_option);
    let flag = flag.map_or(String::new(), |(flag, _)| format!("{flag}="));
    let found = complete(
        &mut command,
        words,
        index,
        env::current_dir().ok().as_deref(),
    );
    let mut text: String = found
        .unwrap_or_default()
        .iter()
        .filter(|candidate| wants_option || !is_option(candidate))
        .map(|candidate| line_of(candidate, &flag))
        .collect();
    text.push_str(NO_FILES);
    text.push('\n');
    text
}

/// Options are offered when one is begun, as those of kubectl are.
fn is_option(candidate: &CompletionCandidate) -> bool {
    candidate.get_value().to_string_lossy().starts_with('-')
}

fn line_of(candidate: &CompletionCandidate, flag: &str) -> String {
    let value = candidate.get_value().to_string_lossy();
    let value = value.strip_prefix(flag).unwrap_or(&value);
    let help = candidate.get_help().map(ToString::to_string);
    match help.as_ref().and_then(|help| help.lines().next()) {
        Some(help) => format!("{value}\t{help}\n"),
        None => format!("{value}\n"),
    }
}

/// The command line's description, with candidates for what is a name.
fn described(words: &[OsString], names: &Names) -> Command {
    let mut command = args::command();
    // Options that are inherited from above, and their verbs' full names, exist from here on.
    command.build();
    let last = words.last().map(|word| word.to_string_lossy());
    let wants_option = last.is_some_and(|word| word.starts_with('-'));
    with_names(command, names, wants_option)
}

/// Options stay behind names and verbs unless one is begun: else a sole name would never be
/// completed.
fn with_names(command: Command, names: &Names, wants_option: bool) -> Command {
    let full = command.get_bin_name().unwrap_or_default();
    let verb = full.strip_prefix(PROGRAM).unwrap_or(full).trim().to_owned();
    let kind = |arg: &Arg| kind(&verb, arg.get_id().as_str());
    let is_named = |arg: &Arg| arg.is_positional() && kind(arg).is_some();
    let has_words = command.has_subcommands() || command.get_arguments().any(is_named);
    let behind = has_words && !wants_option;
    // Of a verb and its aliases one is offered, the first of the alphabet, unless the aliases are
    // hidden. Clap takes static names; the process ends with this answer.
    let aliases = command.get_visible_aliases().map(str::to_owned);
    let aliases: Vec<&'static str> = aliases.map(|alias| &*alias.leak()).collect();
    command
        .visible_alias(None)
        .aliases(aliases)
        .mut_args(|arg| {
            let hidden = arg.is_hide_set() || behind;
            let arg = match kind(&arg) {
                Some(kind) => arg.add(completer(kind, names)),
                None => arg,
            };
            arg.hide(hidden)
        })
        .mut_subcommands(|verb| with_names(verb, names, wants_option))
}

/// What the argument of a verb names. Namespaces of a node's pods are none of the cluster's.
fn kind(verb: &str, arg: &str) -> Option<Kind> {
    let first = verb.split(' ').next().unwrap_or_default();
    let is_of_node = OF_THE_NODE.contains(&first);
    match (verb, arg) {
        ("status" | "events" | "logs" | "delete", "name" | "names")
        | ("console" | "port-forward" | "ssh-config", "name" | "names")
        | ("start" | "stop" | "restart", "names")
        | ("suspend" | "resume" | "pause" | "unpause", "names") => Some(Kind::Machine),
        ("snapshot" | "snapshots" | "revert" | "clone", "machine") => Some(Kind::Machine),
        ("revert" | "clone", "snapshot") => Some(Kind::Snapshot),
        ("backup create" | "backup list", "machine") => Some(Kind::Machine),
        ("backup verify" | "restore", "backup") => Some(Kind::Backup),
        ("export" | "publish", "name") => Some(Kind::Machine),
        ("export" | "publish", "snapshot") => Some(Kind::Snapshot),
        ("export" | "publish", "backup") => Some(Kind::Backup),
        ("ssh", "machine") => Some(Kind::Login),
        ("create vm", "image") => Some(Kind::Image),
        ("image pull" | "image versions" | "image update", "name") => Some(Kind::Image),
        ("create vm" | "import", "class") => Some(Kind::Class),
        ("create vm", "root_claim") | ("backup create", "claim") => Some(Kind::Claim),
        ("create vm", "storage_class") => Some(Kind::StorageClass),
        ("group status" | "group add" | "group remove", "group") => Some(Kind::Group),
        ("group start" | "group stop" | "group suspend", "groups") => Some(Kind::Group),
        ("group add" | "group remove", "members") => Some(Kind::Machine),
        (_, "pod") if is_of_node => Some(Kind::Pod),
        (_, "node") => Some(Kind::Node),
        (_, "namespace" | "vmlet_namespace") if !is_of_node => Some(Kind::Namespace),
        (_, "context") if !is_of_node => Some(Kind::Context),
        (_, "cluster") if !is_of_node => Some(Kind::Cluster),
        (_, "user") if !is_of_node => Some(Kind::User),
        _ => None,
    }
}

fn completer(kind: Kind, names: &Names) -> ArgValueCompleter {
    let names = Arc::clone(names);
    ArgValueCompleter::new(move |word: &OsStr| {
        let word = word.to_string_lossy();
        let split = word.rfind('@').filter(|_| kind == Kind::Login);
        let (user, beginning) = word.split_at(split.map_or(0, |at| at + 1));
        let mut names = names(kind);
        names.retain(|name| name.starts_with(beginning));
        let candidates = names.iter().map(|name| format!("{user}{name}").into());
        candidates.collect()
    })
}

#[cfg(test)]
mod survey;
#[cfg(test)]
mod tests;
