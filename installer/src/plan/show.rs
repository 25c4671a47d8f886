//! Steps as people read them.
//!
//! Invariant: a text is shown as the lines that differ; bytes that are no text by size and digest.
//! Failure: none.

use std::fmt::{self, Display, Formatter};

use super::{Event, Step};
use crate::changes::Change;
use crate::content::Content;

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(change) => write!(f, "{} {}", verb(change), change.path.display()),
            Self::Reload => write!(f, "systemctl daemon-reload"),
            Self::Enable(unit) => write!(f, "systemctl enable {unit}"),
            Self::Disable(unit) => write!(f, "systemctl disable {unit}"),
            Self::Start(unit) => write!(f, "systemctl start {unit}"),
            Self::Stop(unit) => write!(f, "systemctl stop {unit}"),
            Self::Restart(unit) => write!(f, "systemctl restart {unit}"),
            Self::Await(event) => write!(f, "wait until {event}"),
            Self::Forget => write!(
                f,
                "remove the folders of the installation and the undo journal"
            ),
        }
    }
}

impl Display for Event {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KubeletHealthy => "kubelet is healthy",
            Self::ProxyAnswers => "the proxy answers for kubelet's runtime",
            Self::KubeletBehindProxy => "kubelet is healthy and connected to the proxy",
            Self::ProxyUnused => "nothing is connected to the proxy",
        })
    }
}

impl Step {
    /// The step, and what it does to a file.
    pub(crate) fn in_full(&self) -> String {
        let mut text = format!("{self}\n");
        if let Self::File(change) = self {
            for line in difference(change) {
                text.push_str(&format!("    {line}\n"));
            }
        }
        text
    }
}

fn verb(change: &Change) -> &'static str {
    match (&change.from, &change.to) {
        (_, None) => "remove",
        (_, Some(to)) if readable(to).is_none() => "copy the program to",
        (None, Some(_)) => "write",
        (Some(_), Some(_)) => "edit",
    }
}

fn difference(change: &Change) -> Vec<String> {
    let Some(to) = &change.to else {
        return Vec::new();
    };
    let Some(new) = readable(to) else {
        let size = to.bytes.len();
        return vec![format!(
            "{size} bytes, mode {:04o}, sha256 {}",
            to.mode,
            to.digest()
        )];
    };
    let old = change.from.as_ref().and_then(readable).unwrap_or_default();
    let old: Vec<&str> = old.lines().collect();
    let new: Vec<&str> = new.lines().collect();
    let same = |pairs: &mut dyn Iterator<Item = (&&str, &&str)>| {
        pairs.take_while(|(old, new)| old == new).count()
    };
    let head = same(&mut old.iter().zip(&new));
    let shorter = old.len().min(new.len()) - head;
    let tail = same(&mut old.iter().rev().zip(new.iter().rev()).take(shorter));
    let removed = &old[head..old.len() - tail];
    let added = &new[head..new.len() - tail];
    let mode = change
        .from
        .is_none()
        .then(|| format!("mode {:04o}", to.mode));
    let removed = removed.iter().map(|line| format!("- {line}"));
    let added = added.iter().map(|line| format!("+ {line}"));
    mode.into_iter().chain(removed).chain(added).collect()
}

fn readable(content: &Content) -> Option<&str> {
    content.text().filter(|text| !text.contains('\0'))
}
