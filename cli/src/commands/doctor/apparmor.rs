//! AppArmor on this node: the profiles of QEMU and of the daemon, and what that of libvirtd allows.
//!
//! Invariant: nothing is changed; a node without AppArmor is not looked at further.
//! Failure: what cannot be read is a fact of its own.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use service::apparmor::{self, State};

/// The profile of all emulators of Vmlet.
const PROFILE: &str = "libvirt-vmlet";
/// The profile of the daemon, which the package installs.
const DAEMON: &str = "vmlet";
const DAEMON_FILE: &str = "etc/apparmor.d/vmlet";
/// Debian's profile of libvirtd, and what an administrator adds to it.
const LIBVIRTD: &str = "etc/apparmor.d/usr.sbin.libvirtd";
const LOCAL: &str = "etc/apparmor.d/local/usr.sbin.libvirtd";

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AppArmor {
    pub(super) profile: State,
    /// `None` where it is not installed, as on a node with the DaemonSet.
    pub(super) daemon: Option<State>,
    pub(super) libvirtd: Include,
}

/// Whether libvirtd may execute the wrapper, by the files of its profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Include {
    /// The node has no profile of libvirtd.
    NoProfile,
    /// Its local include names the wrapper.
    Allows,
    Missing,
    Unreadable,
}

impl AppArmor {
    pub(super) fn look(root: &Path, wrapper: &Path) -> Self {
        let profile = apparmor::profile(root, PROFILE);
        let libvirtd = match profile {
            State::Disabled => Include::NoProfile,
            _ => include(root, wrapper),
        };
        let is_installed = profile != State::Disabled && root.join(DAEMON_FILE).exists();
        let daemon = is_installed.then(|| apparmor::profile(root, DAEMON));
        Self {
            profile,
            daemon,
            libvirtd,
        }
    }

    /// In a container the kernel does not show its profiles; the daemon sees those of the node.
    pub(super) fn or_of_daemon(mut self, seen: Option<&str>) -> Self {
        if matches!(self.profile, State::Unknown)
            && let Some(seen) = seen
        {
            self.profile = State::parse(seen);
        }
        self
    }
}

fn include(root: &Path, wrapper: &Path) -> Include {
    if !root.join(LIBVIRTD).exists() {
        return Include::NoProfile;
    }
    match fs::read_to_string(root.join(LOCAL)) {
        Ok(text) if text.lines().any(|line| allows(line, wrapper)) => Include::Allows,
        Ok(_) => Include::Missing,
        Err(error) if error.kind() == ErrorKind::NotFound => Include::Missing,
        Err(_) => Include::Unreadable,
    }
}

/// A rule that names the program, quoted or not, and lets it be executed.
fn allows(line: &str, wrapper: &Path) -> bool {
    let mut words = line.split_whitespace();
    let program = words.next().map(|word| word.trim_matches('"'));
    let rights = words.next().unwrap_or_default();
    program == wrapper.to_str() && rights.contains('x')
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRAPPER: &str = "/usr/libexec/vmlet/vmwrapper";

    /// A node with AppArmor, and with these files of libvirtd's profile.
    fn found(libvirtd: Option<&str>, local: Option<&str>) -> AppArmor {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("sys/module/apparmor/parameters/enabled", "Y\n");
        libvirtd.iter().for_each(|text| write(LIBVIRTD, text));
        local.iter().for_each(|text| write(LOCAL, text));
        AppArmor::look(root.path(), Path::new(WRAPPER))
    }

    #[test]
    fn the_include_that_we_deploy_allows_the_wrapper() {
        let deployed = include_str!("../../../../deploy/apparmor/usr.sbin.libvirtd");
        assert_eq!(found(Some(""), Some(deployed)).libvirtd, Include::Allows);
        assert_eq!(found(None, Some(deployed)).libvirtd, Include::NoProfile);
        assert_eq!(found(Some(""), None).libvirtd, Include::Missing);
        for other in ["", "# /usr/libexec/vmlet/vmwrapper PUx,", "/usr/bin/x PUx,"] {
            assert_eq!(
                found(Some(""), Some(other)).libvirtd,
                Include::Missing,
                "{other}"
            );
        }
        let read_only = format!("\"{WRAPPER}\" r,");
        assert_eq!(found(Some(""), Some(&read_only)).libvirtd, Include::Missing);
    }

    #[test]
    fn the_profile_of_the_daemon_counts_where_it_is_installed() {
        let root = tempfile::tempdir().unwrap();
        let make = |path: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "Y\n").unwrap();
        };
        let daemon = || AppArmor::look(root.path(), Path::new(WRAPPER)).daemon;
        make(DAEMON_FILE);
        assert_eq!(daemon(), None, "no AppArmor");
        make("sys/module/apparmor/parameters/enabled");
        assert_eq!(daemon(), Some(State::Unknown));
        // That of QEMU is loaded alone.
        make("sys/kernel/security/apparmor/policy/profiles/vmlet-qemu.1/mode");
        assert_eq!(daemon(), Some(State::Absent));
        make("sys/kernel/security/apparmor/policy/profiles/vmlet.2/mode");
        assert_eq!(daemon(), Some(State::Enforced));
        fs::remove_file(root.path().join(DAEMON_FILE)).unwrap();
        assert_eq!(daemon(), None, "not installed");
    }

    #[test]
    fn a_node_without_apparmor_has_no_profile() {
        let root = tempfile::tempdir().unwrap();
        let expected = AppArmor {
            profile: State::Disabled,
            daemon: None,
            libvirtd: Include::NoProfile,
        };
        assert_eq!(AppArmor::look(root.path(), Path::new(WRAPPER)), expected);
        assert_eq!(found(None, None).profile, State::Unknown);
        for (seen, expected) in [("enforced", State::Enforced), ("other", State::Unknown)] {
            let found = found(None, None).or_of_daemon(Some(seen));
            assert_eq!(found.profile, expected, "{seen}");
        }
        assert_eq!(expected.or_of_daemon(Some("enforced")), expected);
    }
}
