//! The cluster, and the daemon of this node, that an unfinished command line selects.
//!
//! Invariant: words are taken as a shell has them, unfinished: `~` is not replaced, and bash gives
//! `=` as a word.
//! Failure: none; a flag that cannot be understood counts as missing.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::args::DAEMON;
use crate::cluster::ClusterArgs;
use crate::context::Endpoint;

type Set = fn(&mut ClusterArgs, String);

/// The flags of the cluster, wherever they stand; behind `--` there are none.
pub(super) fn cluster(words: &[OsString]) -> ClusterArgs {
    let mut args = ClusterArgs::default();
    let words = words.iter().map(|word| word.to_string_lossy());
    let mut words = words.take_while(|word| word != "--");
    while let Some(word) = words.next() {
        let (flag, value) = split(&word);
        let Some(set) = setter(flag) else { continue };
        let next = match value {
            Some(value) => Some(value.to_owned()),
            None => words.by_ref().find(|word| word != "=").map(Into::into),
        };
        if let Some(value) = next.filter(|value| !value.is_empty()) {
            set(&mut args, value);
        }
    }
    args
}

/// The daemon that `--endpoint` names, else the one of every node command; none: that is no socket.
pub(super) fn endpoint(words: &[OsString]) -> Option<Endpoint> {
    let words = words.iter().map(|word| word.to_string_lossy());
    let mut words = words.take_while(|word| word != "--");
    let mut named = None;
    while let Some(word) = words.next() {
        if let ("--endpoint", value) = split(&word) {
            let value = value.map(str::to_owned);
            named = value.or_else(|| words.by_ref().find(|word| word != "=").map(Into::into));
        }
    }
    let named = named.filter(|value| !value.is_empty());
    let text = named.or_else(|| std::env::var("CONTAINER_RUNTIME_ENDPOINT").ok());
    text.unwrap_or_else(|| DAEMON.to_owned()).parse().ok()
}

/// `--flag=value`, `-fvalue` and `-f=value`; the value may also be the next word.
fn split(word: &str) -> (&str, Option<&str>) {
    if word.starts_with("--") {
        return match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (word, None),
        };
    }
    match word.split_at_checked(2) {
        Some((flag, value)) if flag.starts_with('-') && !value.is_empty() => {
            (flag, Some(value.strip_prefix('=').unwrap_or(value)))
        }
        _ => (word, None),
    }
}

fn setter(flag: &str) -> Option<Set> {
    let set: Set = match flag {
        "--kubeconfig" => |args, value| args.kubeconfig = Some(path(&value)),
        "--context" => |args, value| args.context = Some(value),
        "--cluster" => |args, value| args.cluster = Some(value),
        "--user" => |args, value| args.user = Some(value),
        "-n" | "--namespace" => |args, value| args.namespace = Some(value),
        "--as" => |args, value| args.impersonate = Some(value),
        "--as-group" => |args, value| args.impersonate_groups.push(value),
        _ => return None,
    };
    Some(set)
}

fn path(text: &str) -> PathBuf {
    let below = text.strip_prefix("~/");
    match below.and_then(|below| Some(std::env::home_dir()?.join(below))) {
        Some(path) => path,
        None => PathBuf::from(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> ClusterArgs {
        let words: Vec<_> = line.split(' ').map(OsString::from).collect();
        cluster(&words)
    }

    fn chosen(line: &str) -> (Option<String>, Option<String>) {
        let args = parsed(line);
        (args.namespace, args.context)
    }

    #[test]
    fn flags_are_found_in_all_their_forms_and_places() {
        let both = (Some("x".to_owned()), Some("c".to_owned()));
        for line in [
            "vmletctl -n x --context c status ",
            "vmletctl status -n=x --context=c ",
            "vmletctl --namespace x status web --context c",
            "vmletctl --namespace = x status --context = c ",
            "vmletctl stop a -nx --context c b",
        ] {
            assert_eq!(chosen(line), both, "{line}");
        }
    }

    #[test]
    fn a_line_without_a_choice_chooses_nothing() {
        for line in [
            "",
            "vmletctl status ",
            "vmletctl status -n ",
            "vmletctl status --context=",
            "vmletctl ssh web -- -n x --context c",
            "vmletctl list -A é",
        ] {
            assert_eq!(chosen(line), (None, None), "{line}");
        }
    }

    #[test]
    fn all_that_leads_to_a_cluster_is_taken() {
        let args = parsed(
            "vmletctl --kubeconfig k --cluster l --user u --as eve --as-group g --as-group=h \
             status ",
        );
        assert_eq!(args.kubeconfig, Some("k".into()));
        assert_eq!(
            (args.cluster, args.user),
            (Some("l".into()), Some("u".into()))
        );
        assert_eq!(args.impersonate, Some("eve".into()));
        assert_eq!(args.impersonate_groups, ["g", "h"]);
    }

    #[test]
    fn the_daemon_is_the_one_that_the_line_names() {
        let named = |line: &str| {
            let words: Vec<_> = line.split(' ').map(OsString::from).collect();
            endpoint(&words)
        };
        let other = "/run/other.sock".parse().ok();
        for line in [
            "vmletctl node stop --endpoint /run/other.sock ",
            "vmletctl --endpoint=unix:///run/other.sock rm ",
            "vmletctl rm --endpoint = /run/other.sock ",
        ] {
            assert_eq!(named(line), other, "{line}");
        }
        assert_eq!(named("vmletctl rm --endpoint no-socket "), None);
        assert_ne!(named("vmletctl rm "), other);
    }

    #[test]
    fn the_home_directory_is_found_as_a_shell_would() {
        let home = std::env::home_dir().unwrap();
        assert_eq!(path("~/k"), home.join("k"));
        assert_eq!(path("/k~/x"), PathBuf::from("/k~/x"));
    }
}
