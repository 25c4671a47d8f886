//! The files of the proxy: its program, its settings and its unit.
//!
//! Invariant: unit and settings are those of `deploy/systemd`, but for the paths below the prefix, the
//! socket of the node's runtime and the unit that runs kubelet.
//! Failure: names a file that is not the installer's.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::changes::{Change, Changes, Reader};
use crate::content::Content;
use crate::journal::{State, Target};
use crate::platform;
use crate::root::Root;

/// The unit of the proxy.
pub(crate) const UNIT: &str = "vmlet-criproxy.service";

const UNIT_FILE: &str = "/etc/systemd/system/vmlet-criproxy.service";

const UNIT_TEXT: &str = include_str!("../../deploy/systemd/vmlet-criproxy.service");
const SETTINGS_TEXT: &str = include_str!("../../deploy/systemd/criproxy.toml");

const SETTINGS_PLACE: &str = "/etc/vmlet/criproxy.toml";
const PROGRAM_PLACE: &str = "/usr/bin/vmlet-criproxy";
const PRIMARY: &str = "/run/containerd/containerd.sock";
const PRIMARY_NAME: &str = "name = \"containerd\"";
const KUBELET: &str = "Before=kubelet.service";

/// What has to change on this node.
pub(crate) fn changes(
    root: &Root,
    prefix: &Path,
    target: &Target,
    program: Vec<u8>,
    state: &State,
) -> Result<Changes> {
    let mut changes = Changes::default();
    if let Some(found) = platform::unit_file(root, UNIT)?
        && found != UNIT_FILE
    {
        bail!("{found} is the unit of a package: remove the package vmlet-criproxy first");
    }
    let files = [
        (program_file(prefix), Content::new(program, 0o755)),
        (
            settings_file(prefix),
            Content::new(settings(prefix, &target.primary), 0o644),
        ),
        (
            UNIT_FILE.into(),
            Content::new(unit(prefix, &target.service), 0o644),
        ),
    ];
    for (path, to) in files {
        let from = root.read(&path)?;
        if let Some(content) = &from {
            if content.is_same(&to) {
                continue;
            }
            if !state.is_ours(&path, content) {
                let shown = path.display();
                if path != settings_file(prefix) {
                    bail!(
                        "{shown} is not as the installer has left it: remove it, then repeat this"
                    );
                }
                // Settings are the administrator's once they are there.
                let note = format!("{shown} is the administrator's: it is left as it is");
                changes.notes.push(note);
                continue;
            }
        }
        changes.list.push(Change {
            path,
            reader: Reader::Proxy,
            from,
            to: Some(to),
            edit: None,
        });
    }
    Ok(changes)
}

pub(crate) fn program_file(prefix: &Path) -> PathBuf {
    prefix.join("bin/vmlet-criproxy")
}

pub(crate) fn settings_file(prefix: &Path) -> PathBuf {
    prefix.join("etc/criproxy.toml")
}

fn settings(prefix: &Path, primary: &Path) -> String {
    let socket = primary.to_string_lossy();
    let name = match socket.as_ref() {
        socket if socket.contains("crio") => "cri-o",
        socket if socket.contains("docker") => "docker",
        _ => "containerd",
    };
    SETTINGS_TEXT
        .replace(SETTINGS_PLACE, &settings_file(prefix).to_string_lossy())
        .replace(PRIMARY_NAME, &format!("name = \"{name}\""))
        .replace(PRIMARY, &socket)
}

fn unit(prefix: &Path, service: &str) -> String {
    UNIT_TEXT
        .replace(PROGRAM_PLACE, &program_file(prefix).to_string_lossy())
        .replace(SETTINGS_PLACE, &settings_file(prefix).to_string_lossy())
        .replace(KUBELET, &format!("Before={service}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_has_the_prefix_and_comes_before_kubelet() {
        let text = unit(Path::new("/opt/vmlet"), "k3s.service");
        let start =
            "ExecStart=/opt/vmlet/bin/vmlet-criproxy serve --config /opt/vmlet/etc/criproxy.toml\n";
        assert!(text.contains(start), "{text}");
        assert!(text.contains("\nBefore=k3s.service\n"), "{text}");
        assert!(
            !text.contains("/usr/") && !text.contains("/etc/vmlet"),
            "{text}"
        );
    }

    #[test]
    fn the_settings_name_the_runtime_of_the_node() {
        let prefix = Path::new("/opt/vmlet");
        let text = settings(prefix, Path::new("/run/k3s/containerd/containerd.sock"));
        assert!(
            text.contains("socket = \"/run/k3s/containerd/containerd.sock\""),
            "{text}"
        );
        assert!(text.starts_with("# /opt/vmlet/etc/criproxy.toml"), "{text}");
        let text = settings(prefix, Path::new("/var/run/crio/crio.sock"));
        assert!(
            text.contains("name = \"cri-o\"\nsocket = \"/var/run/crio/crio.sock\""),
            "{text}"
        );
        assert!(!text.contains("containerd.sock"), "{text}");
    }
}
