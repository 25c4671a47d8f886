//! How kubelet of each platform is given the proxy as its runtime.
//!
//! Invariant: kubelet's own runtime goes on to be started by what has started it; only the endpoint
//! changes.
//! Failure: names the file and what to do about it.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::changes::{Change, Changes, Reader};
use crate::content::Content;
use crate::endpoint::{self, ENDPOINT, Edited};
use crate::journal::State;
use crate::platform::{self, Endpoint, Found, Name, Platform};
use crate::root::Root;

/// Files of kubeadm's kubelet, in the order of precedence.
const FLAGS: [&str; 3] = [
    "/etc/default/kubelet",
    "/etc/sysconfig/kubelet",
    "/var/lib/kubelet/kubeadm-flags.env",
];
const CONFIG: &str = "/var/lib/kubelet/config.yaml";
/// With the gate NodeLocalCRISocket; kubeadm makes the fields of `CONFIG` of it at upgrades.
const INSTANCE: &str = "/var/lib/kubelet/instance-config.yaml";

/// kubelet behind the proxy.
#[derive(Debug)]
pub(crate) struct Switch {
    pub(crate) changes: Changes,
    /// The socket of kubelet's own runtime.
    pub(crate) primary: PathBuf,
}

/// What has to change on this node.
pub(crate) fn switch(root: &Root, found: &Found, state: &State) -> Result<Switch> {
    let mut edits = Edits {
        root,
        state,
        changes: Changes::default(),
        endpoints: Vec::new(),
    };
    match found.platform.endpoint {
        Endpoint::Kubeadm => edits.kubeadm()?,
        Endpoint::DropIn { folder, defaults } => edits.drop_in(folder, defaults)?,
        Endpoint::Arguments { file, .. } => edits.arguments(file)?,
        Endpoint::Command => edits.command(&found.service)?,
    }
    let primary = edits.primary(found.platform)?;
    Ok(Switch {
        changes: edits.changes,
        primary,
    })
}

struct Edits<'a> {
    root: &'a Root,
    state: &'a State,
    changes: Changes,
    /// Endpoints that the files had, the first is in force.
    endpoints: Vec<String>,
}

impl Edits<'_> {
    fn kubeadm(&mut self) -> Result<()> {
        let mut is_named = false;
        for path in FLAGS {
            is_named |= self.edit(Path::new(path), endpoint::flag)?;
        }
        for path in [CONFIG, INSTANCE] {
            is_named |= self.edit(Path::new(path), named)?;
        }
        if !is_named && !self.edit(Path::new(CONFIG), field_or_new)? {
            bail!("kubelet's endpoint is in none of kubelet's files, and there is no {CONFIG}");
        }
        if !self.root.exists(Path::new(INSTANCE))? {
            self.changes.notes.push(format!(
                "kubeadm upgrade node takes kubelet's endpoint from an annotation of the Node, which needs the \
                 API server: kubectl annotate node NAME --overwrite \
                 kubeadm.alpha.kubernetes.io/cri-socket={ENDPOINT}"
            ));
        }
        Ok(())
    }

    fn drop_in(&mut self, folder: &str, defaults: &str) -> Result<()> {
        let path = Path::new(folder).join(defaults);
        let text = self.root.text(&path)?;
        let edited = text.map(|text| endpoint::field(&text)).transpose();
        let edited = edited.with_context(|| format!("failed to use {}", path.display()))?;
        let Some(earlier) = edited.flatten().and_then(|edited| edited.earlier) else {
            bail!(
                "{} does not name kubelet's endpoint: releases before 1.32 give it as a flag, which no \
                 configuration overrides; upgrade the node first",
                path.display()
            );
        };
        self.endpoints.push(earlier);
        let path = Path::new(folder).join("99-vmlet.conf");
        self.own(&path, endpoint::drop_in(), endpoint::field, 0o600)
    }

    fn arguments(&mut self, file: &str) -> Result<()> {
        let path = Path::new(file);
        if !self.edit(path, endpoint::flag)? {
            self.edit(path, |text| Ok(Some(endpoint::with_flag_line(text))))?;
        }
        Ok(())
    }

    /// k0s makes kubelet's configuration at each start; only flags are above it.
    fn command(&mut self, service: &str) -> Result<()> {
        let Some(unit) = platform::unit_file(self.root, service)? else {
            bail!("failed to find the unit {service}");
        };
        let text = self.root.text(Path::new(&unit))?.unwrap_or_default();
        let mut commands = text
            .lines()
            .filter_map(|line| line.strip_prefix("ExecStart="));
        let command = commands.next().map(str::trim).unwrap_or_default();
        if command.is_empty() || command.ends_with('\\') || commands.next().is_some() {
            bail!("{unit} has not one line ExecStart= with the command of k0s");
        }
        let edited = endpoint::k0s_command(command);
        let mut edited = edited.with_context(|| format!("failed to use {unit}"))?;
        if edited.earlier.as_deref() == Some(ENDPOINT) {
            // By hand: `primary` refuses it.
            self.endpoints.push(ENDPOINT.to_owned());
            return Ok(());
        }
        self.endpoints.extend(edited.earlier.take());
        edited.text = format!(
            "# By vmlet-installer: the command of {unit}, and kubelet behind vmlet-criproxy.\n\
             [Service]\nExecStart=\nExecStart={}\n",
            edited.text
        );
        let folder = PathBuf::from(format!("/etc/systemd/system/{service}.d"));
        for name in self.root.list(&folder)? {
            // What systemd reads, but for our own.
            if !name.ends_with(".conf") || name.starts_with('.') || name == "50-vmlet.conf" {
                continue;
            }
            let text = self.root.text(&folder.join(&name))?.unwrap_or_default();
            if text.lines().any(|line| line.starts_with("ExecStart=")) {
                bail!(
                    "{}/{name} replaces the command of {unit}: name {ENDPOINT} in it by hand",
                    folder.display()
                );
            }
        }
        let path = folder.join("50-vmlet.conf");
        self.own(&path, edited, endpoint::flag, 0o644)
    }

    /// Edits a file if it is there and names an endpoint.
    fn edit(&mut self, path: &Path, edit: impl Fn(&str) -> Result<Option<Edited>>) -> Result<bool> {
        let Some(content) = self.root.read(path)? else {
            return Ok(false);
        };
        let failed = || format!("failed to use {}", path.display());
        let text = content.text().with_context(failed)?;
        let Some(edited) = edit(text).with_context(failed)? else {
            return Ok(false);
        };
        self.endpoints.extend(edited.earlier);
        if edited.text != text {
            let to = content.with_text(edited.text);
            self.push(path, Some(content.clone()), to, edited.edit);
        }
        Ok(true)
    }

    /// Writes a file of our own.
    fn own(
        &mut self,
        path: &Path,
        edited: Edited,
        read: impl Fn(&str) -> Result<Option<Edited>>,
        mode: u32,
    ) -> Result<()> {
        let to = Content::new(edited.text, mode);
        let current = self.root.read(path)?;
        if let Some(content) = &current {
            if content.bytes == to.bytes {
                return Ok(());
            }
            if !self.state.is_ours(path, content) {
                let text = content.text().unwrap_or_default();
                let earlier = read(text)?.and_then(|edited| edited.earlier);
                if earlier.as_deref() == Some(ENDPOINT) {
                    let shown = path.display();
                    let note =
                        format!("{shown} was changed since the installation: it is left as it is");
                    self.changes.notes.push(note);
                    return Ok(());
                }
                bail!("{} is not the installer's: remove it", path.display());
            }
        }
        self.push(path, current, to, edited.edit);
        Ok(())
    }

    fn push(&mut self, path: &Path, from: Option<Content>, to: Content, edit: endpoint::Edit) {
        self.changes.list.push(Change {
            path: path.to_owned(),
            reader: Reader::Kubelet,
            from,
            to: Some(to),
            edit: Some(edit),
        });
    }

    /// The socket of kubelet's own runtime.
    fn primary(&self, platform: &Platform) -> Result<PathBuf> {
        let theirs = self.endpoints.iter().find(|endpoint| *endpoint != ENDPOINT);
        let Some(theirs) = theirs else {
            return match (self.state.target(), self.endpoints.first()) {
                (Some(target), _) => Ok(target.primary.clone()),
                (None, None) => Ok(platform.socket.into()),
                (None, Some(_)) => bail!(
                    "kubelet uses {ENDPOINT} already, and not by this installer: restore its own endpoint first"
                ),
            };
        };
        let mut path = theirs.strip_prefix("unix://").unwrap_or(theirs).to_owned();
        if let Endpoint::Arguments { variables, .. } = platform.endpoint {
            for (name, value) in variables {
                path = path.replace(name, value);
            }
        }
        if !path.starts_with('/') {
            bail!("kubelet's endpoint {theirs} is not a socket of the node");
        }
        Ok(path.into())
    }
}

/// Edits the field of a configuration if it names an endpoint.
fn named(text: &str) -> Result<Option<Edited>> {
    let edited = endpoint::field(text)?;
    Ok(edited.filter(|edited| edited.earlier.is_some()))
}

fn field_or_new(text: &str) -> Result<Option<Edited>> {
    let edited = endpoint::field(text)?;
    Ok(Some(edited.unwrap_or_else(|| endpoint::with_field(text))))
}

/// What remains to be done by hand after a withdrawal.
pub(crate) fn after_withdrawal(name: Name, primary: &Path) -> Option<String> {
    (name == Name::Kubeadm).then(|| {
        format!(
            "if the Node has the annotation kubeadm.alpha.kubernetes.io/cri-socket, restore it, too: \
             kubectl annotate node NAME --overwrite kubeadm.alpha.kubernetes.io/cri-socket=unix://{}",
            primary.display()
        )
    })
}
