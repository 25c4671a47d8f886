//! Connection to a cluster, and its errors for users.
//!
//! Invariant: every request but a followed log has a deadline; no command reads more of the
//! environment than kubectl does.
//! Failure: [`ClusterError`], each with advice.

mod connect;
mod error;
pub(crate) mod listed;
mod machine;
pub(crate) mod node_pod;
pub(crate) mod reach;

use std::time::Duration;

use clap::Args;

pub(crate) use connect::Cluster;
pub(crate) use error::{ClusterError, advice, innermost};
pub(crate) use machine::Found;

/// Selects the cluster and the user, as in kubectl.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct ClusterArgs {
    /// Path to the kubeconfig file [default: KUBECONFIG, ~/.kube/config, or the pod's service
    /// account].
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<std::path::PathBuf>,
    /// Context of the kubeconfig.
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Cluster of the kubeconfig.
    #[arg(long, value_name = "NAME")]
    pub(crate) cluster: Option<String>,
    /// User of the kubeconfig.
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Namespace [default: the namespace of the context].
    #[arg(short, long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// User to impersonate.
    #[arg(long = "as", value_name = "USER")]
    pub(crate) impersonate: Option<String>,
    /// Group to impersonate; may be repeated.
    #[arg(long = "as-group", value_name = "GROUP", requires = "impersonate")]
    pub(crate) impersonate_groups: Vec<String>,
    /// Maximum time for the API server to answer, such as 10s or 1m; a number without unit is in
    /// seconds, 0 means no limit.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = deadline)]
    pub(crate) request_timeout: Deadline,
}

/// A time for an answer; `None`: as long as it takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Deadline(pub(crate) Option<Duration>);

fn deadline(text: &str) -> Result<Deadline, String> {
    let seconds = seconds(text)?;
    let time = Duration::from_secs(u64::from(seconds));
    Ok(Deadline(Some(time).filter(|time| !time.is_zero())))
}

/// Seconds of a text such as `20`, `20s`, `2m` or `1h`.
pub(crate) fn seconds(text: &str) -> Result<u32, String> {
    let (number, factor) = match text.strip_suffix(['s', 'm', 'h']) {
        Some(number) if text.ends_with('h') => (number, 3600),
        Some(number) if text.ends_with('m') => (number, 60),
        Some(number) => (number, 1),
        None => (text, 1),
    };
    let parsed = number.parse::<u32>().ok();
    parsed
        .and_then(|number| number.checked_mul(factor))
        .ok_or_else(|| "whole seconds, minutes or hours are needed, such as 20, 20s or 2m".into())
}

/// Selects machines.
#[derive(Debug, Clone, Args)]
pub(crate) struct Names {
    /// Names of virtual machines.
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
}

impl Names {
    /// The name alone of one machine.
    pub(crate) fn machine(word: &str) -> &str {
        match word.split_once('/') {
            Some((kind, name)) if is_kind(kind) => name,
            _ => word,
        }
    }

    /// The names alone: `vm/web` and `vm web` are what users of kubectl and virtctl type.
    pub(crate) fn of_machines(&self) -> Vec<&str> {
        let mut words = self.names.as_slice();
        if let [kind, rest @ ..] = words
            && is_kind(kind)
            && !rest.is_empty()
        {
            words = rest;
        }
        words.iter().map(|word| Self::machine(word)).collect()
    }
}

/// The kind VirtualMachine, as kubectl takes it.
fn is_kind(word: &str) -> bool {
    let kind = word.strip_suffix(".vmlet.dev").unwrap_or(word);
    ["vm", "vms", "virtualmachine", "virtualmachines"].contains(&kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_may_stand_before_a_name() {
        let names = |words: &[&str]| {
            let names = Names {
                names: words.iter().map(ToString::to_string).collect(),
            };
            names.of_machines().join(" ")
        };
        assert_eq!(names(&["web", "db"]), "web db");
        assert_eq!(names(&["vm", "web"]), "web");
        assert_eq!(names(&["vm/web", "virtualmachine.vmlet.dev/db"]), "web db");
        // One that is called like the kind, or has a name that is none.
        assert_eq!(names(&["vm"]), "vm");
        assert_eq!(names(&["pod/web"]), "pod/web");
    }

    #[test]
    fn times_are_seconds_or_have_a_unit() {
        let read = ["20", "20s", "2m", "1h", "0"].map(|text| seconds(text).unwrap());
        assert_eq!(read, [20, 20, 120, 3600, 0]);
        for text in ["", "s", "-1", "1.5s", "20 s", "1d", "99999999h"] {
            assert!(seconds(text).is_err(), "{text}");
        }
        assert_eq!(deadline("0"), Ok(Deadline(None)));
        assert_eq!(deadline("5s"), Ok(Deadline(Some(Duration::from_secs(5)))));
    }
}
