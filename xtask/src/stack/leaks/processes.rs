//! Processes that outlived their stack.
//!
//! Invariant: a process counts as the stack's own if the supervisor is its parent, if its
//! environment names the stack, if it is in the stack's control group, or if it is one of the
//! stack's programs or a QEMU with the stack's directory in its command line. Others that merely
//! sit in the stack's network namespace are reported but never killed.
//! Failure: a process that ends while it is checked is not there.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::unistd::Pid;

use super::{Leak, cgroups};
use crate::stack::Layout;
use crate::stack::program::OWNER;

/// A process as `/proc` shows it.
#[derive(Debug)]
pub(crate) struct Process {
    /// Its id.
    pub(crate) pid: i32,
    parent: i32,
    arguments: Vec<String>,
    program: PathBuf,
    network: Option<u64>,
}

/// What outlived the stack, apart from libvirtd, which still has to answer questions.
pub(super) fn find(layout: &Layout, supervisor: Option<i32>) -> Result<Vec<Leak>> {
    let libvirtd = supervised_libvirtd(layout, supervisor);
    let namespaces = namespaces(layout);
    let relatives = ancestors();
    let owned: Vec<i32> = owned(layout, supervisor)?
        .iter()
        .map(|process| process.pid)
        .collect();
    let mut found = Vec::new();
    for process in all()? {
        let is_ours = owned.contains(&process.pid);
        let sits_inside = process
            .network
            .is_some_and(|inode| namespaces.contains(&inode));
        let expected = Some(process.pid) == libvirtd
            || Some(process.pid) == supervisor
            || relatives.contains(&process.pid);
        if (is_ours || sits_inside) && !expected {
            found.push(Leak::new("process", process.title()));
        }
    }
    Ok(found)
}

/// The processes that belong to the stack, less its supervisor.
pub(crate) fn owned(layout: &Layout, supervisor: Option<i32>) -> Result<Vec<Process>> {
    let relatives = ancestors();
    let grouped = cgroups::processes(layout);
    let is_owned = |process: &Process| {
        !relatives.contains(&process.pid)
            && Some(process.pid) != supervisor
            && (Some(process.parent) == supervisor
                || grouped.contains(&process.pid)
                || process.says_it_belongs_to(layout.dir())
                || process.belongs_to(layout.dir()))
    };
    Ok(all()?.into_iter().filter(is_owned).collect())
}

/// Whether a process with this id exists and is not a corpse, down to its last thread.
pub(crate) fn is_alive(pid: i32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| parse_stat(&stat).is_some_and(|(state, _)| state != 'Z' || threads > 1))
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let (state, parent) = parse_stat(&fs::read_to_string(proc.join("stat")).ok()?)?;
        let command_line = fs::read(proc.join("cmdline")).ok()?;
        let arguments = command_line
            .split(|byte| *byte == 0)
            .filter(|argument| !argument.is_empty());
        (state != 'Z').then_some(Self {
            pid,
            parent,
            arguments: arguments
                .map(|text| String::from_utf8_lossy(text).into_owned())
                .collect(),
            program: fs::read_link(proc.join("exe")).unwrap_or_default(),
            network: fs::metadata(proc.join("ns/net"))
                .ok()
                .map(|metadata| metadata.ino()),
        })
    }

    fn says_it_belongs_to(&self, dir: &Path) -> bool {
        let own = [OWNER.as_bytes(), b"=", dir.as_os_str().as_encoded_bytes()].concat();
        let environment = fs::read(format!("/proc/{}/environ", self.pid)).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == own)
    }

    fn belongs_to(&self, dir: &Path) -> bool {
        let name = self
            .program
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let ours = self.program.starts_with(dir)
            || name.starts_with("qemu-system")
            || name.starts_with("libvirtd")
            || self
                .arguments
                .first()
                .is_some_and(|name| name.starts_with("vmlet-stack-"));
        ours && self
            .arguments
            .iter()
            .any(|argument| mentions(argument, dir))
            || self.program.starts_with(dir)
    }

    fn title(&self) -> String {
        let line: String = self.arguments.join(" ").chars().take(120).collect();
        format!("{} ({line})", self.pid)
    }
}

/// Whether `argument` holds `dir` itself or a path below it.
fn mentions(argument: &str, dir: &Path) -> bool {
    let dir = dir.to_string_lossy();
    argument.match_indices(&*dir).any(|(start, _)| {
        argument[start + dir.len()..]
            .chars()
            .next()
            .is_none_or(|next| matches!(next, '/' | ',' | '"'))
    })
}

fn all() -> Result<Vec<Process>> {
    let entries = fs::read_dir("/proc").context("list /proc")?;
    Ok(entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(Process::read)
        .collect())
}

/// This process and its parents up to the first.
fn ancestors() -> Vec<i32> {
    let mut line = vec![Pid::this().as_raw()];
    let mut next = Pid::parent().as_raw();
    while next > 0 && !line.contains(&next) {
        line.push(next);
        let stat = fs::read_to_string(format!("/proc/{next}/stat")).unwrap_or_default();
        next = parse_stat(&stat).map_or(0, |(_, parent)| parent);
    }
    line
}

/// The stack's network namespace and those of its pods.
fn namespaces(layout: &Layout) -> Vec<u64> {
    // A cluster's node has them in a mount namespace of its own: there they are found by control
    // group.
    let pods = fs::read_dir(layout.path("netns"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    pods.chain([layout.netns_path()])
        .filter_map(|path| fs::metadata(path).ok().map(|metadata| metadata.ino()))
        .collect()
}

fn supervised_libvirtd(layout: &Layout, supervisor: Option<i32>) -> Option<i32> {
    supervisor?;
    fs::read_to_string(layout.pid_file("libvirtd"))
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// State and parent. The name before them is in brackets and may hold anything.
fn parse_stat(stat: &str) -> Option<(char, i32)> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_in_stat_may_hold_brackets_and_blanks() {
        assert_eq!(parse_stat("12 (a) b (c)) S 7 12 12"), Some(('S', 7)));
        assert_eq!(parse_stat("garbage"), None);
    }

    #[test]
    fn a_directory_is_mentioned_as_a_whole_only() {
        let dir = Path::new("/tmp/stack");
        assert!(mentions("/tmp/stack", dir));
        assert!(mentions("file=/tmp/stack/disk,format=qcow2", dir));
        assert!(!mentions("/tmp/stack2/disk", dir));
    }

    #[test]
    fn this_process_is_found_and_is_its_own_relative() {
        let me = Pid::this().as_raw();
        assert!(is_alive(me) && ancestors().contains(&me));
        assert!(all().unwrap().iter().any(|process| process.pid == me));
    }
}
