//! kubelet's runtime endpoint in the texts that can name it.
//!
//! Invariant: an edit changes the endpoint and not a byte beside it, and can be taken back in a text
//! that has changed elsewhere.
//! Failure: a text with several endpoints is refused, since only one of them counts.

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};

/// The proxy's socket, as in its settings.
pub(crate) const SOCKET: &str = "/run/vmlet/criproxy.sock";

/// The proxy as kubelet's endpoint.
pub(crate) const ENDPOINT: &str = "unix:///run/vmlet/criproxy.sock";

const FLAG: &str = "--container-runtime-endpoint";
const KEY: &str = "containerRuntimeEndpoint:";

/// A part of a text that was replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Edit {
    pub(crate) ours: String,
    pub(crate) theirs: String,
}

/// A text with the proxy as the endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edited {
    pub(crate) text: String,
    pub(crate) edit: Edit,
    /// What the text had before, if it had one.
    pub(crate) earlier: Option<String>,
}

/// Edits the flag in the arguments of kubelet, if it is there; lines of comments do not count.
pub(crate) fn flag(text: &str) -> Result<Option<Edited>> {
    let ours = format!("{FLAG}={ENDPOINT}");
    let mut found = None;
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let is_comment = line.trim_start().starts_with('#');
        for (at, _) in line.match_indices(FLAG).filter(|_| !is_comment) {
            ensure!(found.is_none(), "it has {FLAG} twice: remove one of them");
            let behind = &line[at + FLAG.len()..];
            let Some(value) = behind.strip_prefix(['=', ' ']) else {
                bail!("{FLAG} has no value");
            };
            let ends = |c: char| c.is_whitespace() || c == '"' || c == '\'';
            let length = value.find(ends).unwrap_or(value.len());
            let theirs = &line[at..at + FLAG.len() + 1 + length];
            found = Some((start + at, theirs, &value[..length]));
        }
        start += line.len();
    }
    let edited = found.map(|(at, theirs, value)| replaced(text, at, theirs, ours, value));
    Ok(edited)
}

/// Edits the field in kubelet's configuration, if it is there.
pub(crate) fn field(text: &str) -> Result<Option<Edited>> {
    ensure!(
        !text.trim_start().starts_with('{'),
        "it is JSON: write it as YAML, with a line for each field"
    );
    let ours = format!("{KEY} {ENDPOINT}");
    let mut found = None;
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        if let Some(value) = line.strip_prefix(KEY) {
            ensure!(found.is_none(), "it has {KEY} twice: remove one of them");
            let value = value.split(" #").next().unwrap_or_default().trim();
            found = Some((start, line.trim_end(), value.trim_matches(['"', '\''])));
        }
        start += line.len();
    }
    let edited = found.map(|(at, theirs, value)| replaced(text, at, theirs, ours, value));
    Ok(edited)
}

/// Adds the field to a configuration without it.
pub(crate) fn with_field(text: &str) -> Edited {
    added(text, format!("{KEY} {ENDPOINT}\n"))
}

/// Adds the flag to a file with an argument on each line.
pub(crate) fn with_flag_line(text: &str) -> Edited {
    added(text, format!("{FLAG}={ENDPOINT}\n"))
}

/// A configuration of kubelet with nothing but the endpoint.
pub(crate) fn drop_in() -> Edited {
    let text = "# By vmlet-installer: kubelet behind vmlet-criproxy.\n\
                apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    with_field(text)
}

/// The command of k0s with the flag among the arguments that it gives to kubelet: what follows
/// `ExecStart=` in its unit.
pub(crate) fn k0s_command(command: &str) -> Result<Edited> {
    const EXTRA: &str = "--kubelet-extra-args";
    ensure!(
        !command.contains("--cri-socket"),
        "k0s is started with --cri-socket, for a runtime of its administrator: name {SOCKET} there by hand"
    );
    if let Some(edited) = flag(command)? {
        return Ok(edited);
    }
    let ours = format!("{FLAG}={ENDPOINT}");
    let Some(at) = command.find(EXTRA) else {
        return Ok(added(command, format!(" {EXTRA}={ours}")));
    };
    let behind = &command[at + EXTRA.len()..];
    let Some(value) = behind.strip_prefix(['=', ' ']) else {
        bail!("{EXTRA} has no value");
    };
    let value_at = at + EXTRA.len() + 1;
    let quote = value.chars().next().filter(|c| "\"'".contains(*c));
    // Where the value ends, and what parts two arguments in it.
    let (end, blank) = match quote {
        Some(quote) => match value[1..].find(quote) {
            Some(length) => (value_at + 1 + length, " "),
            None => bail!("the value of {EXTRA} has no end"),
        },
        None => {
            let length = value.find(char::is_whitespace).unwrap_or(value.len());
            (value_at + length, "\\x20")
        }
    };
    Ok(replaced(command, end, "", format!("{blank}{ours}"), ""))
}

/// Takes an edit back in a text that was changed since, if our part is there exactly once.
pub(crate) fn revert(text: &str, edit: &Edit) -> Option<String> {
    let is_ours_once = text.matches(&edit.ours).count() == 1;
    is_ours_once.then(|| text.replace(&edit.ours, &edit.theirs))
}

fn replaced(text: &str, at: usize, theirs: &str, ours: String, value: &str) -> Edited {
    let before = &text[..at];
    let behind = &text[at + theirs.len()..];
    Edited {
        text: format!("{before}{ours}{behind}"),
        edit: Edit {
            ours,
            theirs: theirs.to_owned(),
        },
        earlier: (!value.is_empty()).then(|| value.to_owned()),
    }
}

fn added(text: &str, ours: String) -> Edited {
    let needs_end = !text.is_empty() && !text.ends_with('\n') && ours.ends_with('\n');
    let ours = if needs_end { format!("\n{ours}") } else { ours };
    replaced(text, text.len(), "", ours, "")
}

#[cfg(test)]
mod tests;
