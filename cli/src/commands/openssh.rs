//! What `ssh`, `scp` and `ssh-config` tell the OpenSSH of this computer: the way to a guest, and whose host key it has.
//!
//! Invariant: a host key is stored for the identity of a machine, not for its name or address: a machine that is made
//! again under a name is a new one, and another key of the same machine is reported by ssh. The way is a command
//! of ours that ssh runs, so that no port is opened on this computer. `ssh` and `scp` use no connection that another
//! ssh keeps open: its name has no cluster.
//! Failure: a program that is not installed, an argument that a shell cannot get, and a name of the API server that
//! would be more than a word of a configuration.

mod words;

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, bail};
use crds::VirtualMachine;
use crds::names;
use crds::vm::PrintableStatus as Word;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

use self::words::quoted;
use crate::cluster::reach::{Reach, Seen};
use crate::cluster::{ClusterArgs, ClusterError};
use crate::table::printable;

/// Host keys of machines, beside those of other computers.
const KNOWN_HOSTS: &str = "~/.ssh/vmlet_known_hosts";
/// The end of the names that ssh knows guests by.
pub(super) const DOMAIN: &str = "vmlet";

/// A guest as ssh knows it.
pub(super) struct Guest {
    /// NAME.NAMESPACE.
    place: String,
    /// The name of its host key.
    alias: String,
    /// The command that connects to it.
    proxy: String,
    /// Why it has no connections now.
    resting: Option<String>,
}

/// A user, if one is named, and a machine.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Login<'a> {
    pub(super) user: Option<&'a str>,
    pub(super) name: &'a str,
}

impl Guest {
    /// Of a machine, or of a VM pod.
    pub(super) async fn new(args: &ClusterArgs, word: &str) -> anyhow::Result<Self> {
        let reach = Reach::new(args, word).await?;
        let namespace = plain("namespace", &reach.cluster.namespace)?;
        let machine = reach.look::<VirtualMachine>().await?;
        let uid = match &machine {
            Seen::There(machine) => machine.uid(),
            Seen::Absent => uid_of_pod(&reach, true).await?,
            Seen::Hidden => uid_of_pod(&reach, false).await?,
        };
        let alias = match uid {
            Some(uid) => format!("{}{}", names::PREFIX, plain("UID", &uid)?),
            // A user who may read neither machine nor pod has its name alone.
            None => {
                let server = &reach.cluster.server;
                format!("{}{server}/{namespace}/{}", names::PREFIX, reach.name)
            }
        };
        let program = std::env::current_exe().context("find this program")?;
        let program = program
            .to_str()
            .context("the path of this program is no text")?;
        Ok(Self {
            place: format!("{}.{namespace}", reach.name),
            alias,
            proxy: proxy(program, args, namespace, &reach.name)?,
            resting: machine.object().as_ref().and_then(resting),
        })
    }

    /// An error in words if the machine is known not to run.
    pub(super) fn ensure_runs(&self) -> anyhow::Result<()> {
        match &self.resting {
            Some(words) => bail!("{words}"),
            None => Ok(()),
        }
    }

    /// The name that ssh has for it.
    pub(super) fn host(&self) -> String {
        format!("{}.{DOMAIN}", self.place)
    }

    /// The target for ssh and scp.
    pub(super) fn target(&self, user: Option<&str>) -> String {
        match user {
            Some(user) => format!("{user}@{}", self.host()),
            None => self.host(),
        }
    }

    /// What the configuration of ssh says of it.
    fn settings(&self) -> [(&'static str, &str); 3] {
        [
            ("ProxyCommand", &self.proxy),
            ("HostKeyAlias", &self.alias),
            ("UserKnownHostsFile", KNOWN_HOSTS),
        ]
    }

    /// The same as arguments of ssh and scp, which have a connection of their own.
    pub(super) fn options(&self) -> Vec<String> {
        let settings = self.settings();
        let options = settings
            .iter()
            .chain(&[("ControlPath", "none")])
            .flat_map(|(key, value)| ["-o".to_owned(), format!("{key}={value}")]);
        options.collect()
    }

    /// The same as a block of ~/.ssh/config.
    pub(super) fn block(&self, domain: &str) -> String {
        let mut text = format!("Host {}.{domain}\n", self.place);
        for (key, value) in self.settings() {
            text += &format!("  {key} {value}\n");
        }
        text
    }
}

/// The identity behind a pod; none: the user may not read it. An error if neither machine nor pod is there.
async fn uid_of_pod(reach: &Reach, no_machine: bool) -> anyhow::Result<Option<String>> {
    match reach.look::<Pod>().await? {
        Seen::There(pod) => Ok(pod
            .labels()
            .get(names::VM_UID_LABEL)
            .cloned()
            .or_else(|| pod.uid())),
        Seen::Absent if no_machine => Err(ClusterError::NotFound {
            namespace: reach.cluster.namespace.clone(),
            name: reach.name.clone(),
        }
        .into()),
        Seen::Absent | Seen::Hidden => Ok(None),
    }
}

/// A word that is one in a configuration of ssh, too.
pub(super) fn plain<'a>(what: &str, word: &'a str) -> anyhow::Result<&'a str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-".contains(c);
    if word.is_empty() || word.starts_with('-') || !word.chars().all(is_plain) {
        bail!(
            "the {what} {:?} cannot be used with ssh: it may have letters, digits, - and .",
            printable(word)
        );
    }
    Ok(word)
}

/// The command that ssh runs by a shell, with the flags that lead to the cluster.
fn proxy(program: &str, args: &ClusterArgs, namespace: &str, name: &str) -> anyhow::Result<String> {
    let mut words = vec![quoted(program)?];
    let kubeconfig = args
        .kubeconfig
        .as_ref()
        .map(std::path::absolute)
        .transpose();
    let kubeconfig = kubeconfig.context("find the kubeconfig")?;
    let kubeconfig = match &kubeconfig {
        Some(path) => Some(
            path.to_str()
                .context("the path of the kubeconfig is no text")?,
        ),
        None => None,
    };
    let flags = [
        ("--kubeconfig", kubeconfig),
        ("--context", args.context.as_deref()),
        ("--cluster", args.cluster.as_deref()),
        ("--user", args.user.as_deref()),
        ("--namespace", Some(namespace)),
        ("--as", args.impersonate.as_deref()),
    ];
    let groups = args
        .impersonate_groups
        .iter()
        .map(|group| ("--as-group", group.as_str()));
    let flags = flags
        .iter()
        .filter_map(|(flag, value)| Some((*flag, (*value)?)));
    for (flag, value) in flags.chain(groups) {
        words.push(quoted(&format!("{flag}={value}"))?);
    }
    let answer = args.request_timeout.0.map_or(0, |time| time.as_secs());
    words.push(format!("--request-timeout={answer}"));
    // ssh replaces %p by the port.
    words.extend(["port-forward", name, "--stdio", "%p"].map(str::to_owned));
    Ok(words.join(" "))
}

/// Becomes a program of OpenSSH; returns the error if that is not possible.
pub(super) fn become_program(program: &str, arguments: &[String]) -> anyhow::Error {
    let error = Command::new(program).args(arguments).exec();
    anyhow::Error::from(error).context(format!(
        "run {program}, which has to be installed on this computer"
    ))
}

/// The user before the name of a machine, if there is one; the name may have its kind before it.
pub(super) fn login(word: &str) -> Login<'_> {
    match word.rsplit_once('@') {
        Some((user, name)) => Login {
            user: Some(user),
            name,
        },
        None => Login {
            user: None,
            name: word,
        },
    }
}

/// Why a machine has no connections now.
fn resting(vm: &VirtualMachine) -> Option<String> {
    let state = vm
        .status
        .as_ref()
        .and_then(|status| status.printable_status);
    let name = vm.name_any();
    let state = match state {
        Some(Word::Running) => return None,
        Some(word) => format!("{word:?}"),
        None => "new".to_owned(),
    };
    Some(format!(
        "{name} does not run, it is {state}: `vmletctl status {name}` says more"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    impl Guest {
        pub(in crate::commands) fn for_tests(name: &str) -> Self {
            Self {
                place: format!("{name}.team"),
                alias: "vmlet.dev/u1".to_owned(),
                proxy: format!("/usr/bin/vmletctl port-forward {name} --stdio %p"),
                resting: None,
            }
        }
    }

    #[test]
    fn the_way_leads_to_the_same_cluster_as_the_command_line() {
        let mut args = ClusterArgs {
            kubeconfig: Some("/home/a b/config".into()),
            context: Some("prod".to_owned()),
            impersonate: Some("it's".to_owned()),
            impersonate_groups: vec!["50%".to_owned()],
            ..ClusterArgs::default()
        };
        assert_eq!(
            proxy("/usr/bin/vmletctl", &args, "team", "web").unwrap(),
            "/usr/bin/vmletctl '--kubeconfig=/home/a b/config' --context=prod --namespace=team \
             '--as=it'\\''s' '--as-group=50%%' --request-timeout=0 port-forward web --stdio %p"
        );
        args.context = Some("two\nlines".to_owned());
        assert!(proxy("/usr/bin/vmletctl", &args, "team", "web").is_err());
    }

    #[test]
    fn options_and_block_lead_the_same_way_and_options_share_no_connection() {
        let guest = Guest::for_tests("web");
        assert_eq!(
            guest.options().join(" "),
            "-o ProxyCommand=/usr/bin/vmletctl port-forward web --stdio %p -o HostKeyAlias=vmlet.dev/u1 \
             -o UserKnownHostsFile=~/.ssh/vmlet_known_hosts -o ControlPath=none"
        );
        assert_eq!(
            guest.block(DOMAIN),
            "Host web.team.vmlet\n  ProxyCommand /usr/bin/vmletctl port-forward web --stdio %p\n  \
             HostKeyAlias vmlet.dev/u1\n  UserKnownHostsFile ~/.ssh/vmlet_known_hosts\n"
        );
        assert_eq!(guest.target(Some("root")), "root@web.team.vmlet");
        let other = guest.block("prod");
        assert!(other.starts_with("Host web.team.prod\n"), "{other}");
    }

    #[test]
    fn a_name_of_the_server_is_one_word_of_a_configuration() {
        assert_eq!(plain("UID", "0b1c-2D.x").unwrap(), "0b1c-2D.x");
        for word in [
            "",
            "u\n  ProxyCommand x",
            "a b",
            "a\"b",
            "*",
            "-x",
            "u\u{e9}",
        ] {
            assert!(plain("UID", word).is_err(), "{word:?}");
        }
    }

    #[test]
    fn a_user_stands_before_the_last_at() {
        let parts = |word| {
            let login = login(word);
            (login.user, login.name)
        };
        assert_eq!(parts("web"), (None, "web"));
        assert_eq!(parts("a@corp@web"), (Some("a@corp"), "web"));
    }

    #[test]
    fn a_machine_without_connections_reports_its_state() {
        let words = |status: Value| {
            let vm = json!({
                "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachine",
                "metadata": {"name": "web"}, "spec": {"running": true}, "status": status,
            });
            resting(&serde_json::from_value(vm).unwrap())
        };
        assert_eq!(words(json!({"printableStatus": "Running"})), None);
        let stopped = words(json!({"printableStatus": "Stopped"})).unwrap();
        assert!(stopped.contains("does not run, it is Stopped"), "{stopped}");
        assert!(words(json!({})).unwrap().contains("it is new"));
    }
}
