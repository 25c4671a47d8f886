//! Checks of settings that depend on each other.
//!
//! Invariant: each name, handler, annotation value, image prefix and socket means one runtime.
//! Failure: [`Contradiction`], the first one found, as a sentence.

use std::collections::BTreeMap;
use std::path::Path;

use service::settings::Timespan;

use super::{Config, Secondary};

/// Longest path of a Unix socket that the kernel takes, in bytes.
const LONGEST_SOCKET: usize = 107;

/// From this end of the path, kubelet believes that it talks to CRI-O and reads its statistics
/// elsewhere.
const CRIO: &str = "run/crio/crio.sock";

/// Settings that do not fit together.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    /// Two runtimes would answer to the same thing.
    #[error("{what} {value:?} is given to both {first} and {second}")]
    Twice {
        /// Kind of thing.
        what: &'static str,
        /// The thing.
        value: String,
        /// One runtime.
        first: String,
        /// The other.
        second: String,
    },
    /// A value that cannot be used.
    #[error("{what} {value:?}: {reason}")]
    Unusable {
        /// Kind of thing.
        what: &'static str,
        /// The thing.
        value: String,
        /// What is wrong with it.
        reason: &'static str,
    },
}

impl Config {
    /// Looks for contradictions.
    ///
    /// # Errors
    ///
    /// The first [`Contradiction`].
    pub fn refuse_contradictions(&self) -> Result<(), Contradiction> {
        self.check_paths()?;
        self.check_names()?;
        for secondary in &self.secondary {
            check_secondary(secondary)?;
        }
        self.check_owners()?;
        self.check_suffixes()?;
        if let Some(metrics) = &self.metrics
            && !metrics.listen.ip().is_loopback()
        {
            let value = metrics.listen.to_string();
            return Err(unusable(
                "metrics.listen",
                &value,
                "must be a loopback address",
            ));
        }
        let limits = &self.limits;
        for (what, value) in [
            ("limits.fanout_timeout", limits.fanout_timeout),
            ("limits.connect_timeout", limits.connect_timeout),
            ("limits.breaker_open", limits.breaker_open),
        ] {
            if !(Timespan::from_millis(1)..=Timespan::from_secs(60)).contains(&value) {
                return Err(unusable(what, &value.to_string(), "must be from 1ms to 1m"));
            }
        }
        Ok(())
    }

    fn check_paths(&self) -> Result<(), Contradiction> {
        let listen = text(&self.listen);
        if listen.ends_with(CRIO) {
            let reason = "kubelet would take the proxy for CRI-O; name the socket differently";
            return Err(unusable("listen", &listen, reason));
        }
        for (what, path) in [
            ("listen", &self.listen),
            ("state_dir", &self.state_dir),
            ("boot_id_file", &self.boot_id_file),
            ("status_listen", &self.status_listen),
        ] {
            let is_off = what == "status_listen" && path.as_os_str().is_empty();
            if !path.is_absolute() && !is_off {
                return Err(unusable(what, &text(path), "must be an absolute path"));
            }
        }
        if self.status_listen == self.listen {
            let reason = "is the socket for kubelet; the agent must not reach it";
            return Err(unusable("status_listen", &text(&self.listen), reason));
        }
        let mut owners = BTreeMap::from([
            (self.listen.as_path(), "the proxy itself"),
            (self.status_listen.as_path(), "the proxy itself"),
        ]);
        for (name, socket) in self.sockets() {
            if !socket.is_absolute() {
                return Err(unusable(
                    "socket",
                    &text(socket),
                    "must be an absolute path",
                ));
            }
            if let Some(first) = owners.insert(socket, name) {
                return Err(twice("socket", &text(socket), first, name));
            }
        }
        for path in owners.keys() {
            if path.as_os_str().len() > LONGEST_SOCKET {
                let reason = "is longer than the 107 bytes that a socket's path may have";
                return Err(unusable("socket", &text(path), reason));
            }
        }
        Ok(())
    }

    fn check_names(&self) -> Result<(), Contradiction> {
        let mut seen = BTreeMap::new();
        for (name, _) in self.sockets() {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            if name.is_empty()
                || name.len() > 63
                || !name.chars().all(plain)
                || name.starts_with('-')
            {
                let reason = "must be 1 to 63 of a-z, 0-9 and -, not - first";
                return Err(unusable("name", name, reason));
            }
            if seen.insert(name, ()).is_some() {
                return Err(twice("name", name, "one runtime", "another"));
            }
        }
        Ok(())
    }

    fn check_owners(&self) -> Result<(), Contradiction> {
        let mut owners: BTreeMap<(&str, &str), &str> = BTreeMap::new();
        let primary = self.primary.name.as_str();
        owners.insert(("annotation value", primary), primary);
        for secondary in &self.secondary {
            let handlers = secondary.handlers.iter().map(|v| ("handler", v));
            let targets = secondary.target_runtimes.iter();
            let targets = targets.map(|v| ("annotation value", v));
            let prefixes = secondary.image_prefixes.iter();
            let prefixes = prefixes.map(|v| ("image prefix", v));
            for (what, value) in handlers.chain(targets).chain(prefixes) {
                if let Some(first) = owners.insert((what, value), &secondary.name) {
                    return Err(twice(what, value, first, &secondary.name));
                }
            }
        }
        Ok(())
    }

    fn check_suffixes(&self) -> Result<(), Contradiction> {
        let with: Vec<_> = (self.secondary.iter())
            .filter_map(|s| Some((s, s.id_suffix.as_deref()?)))
            .collect();
        for (at, (one, suffix)) in with.iter().enumerate() {
            for (other, theirs) in &with[at + 1..] {
                if suffix.ends_with(theirs) || theirs.ends_with(suffix) {
                    return Err(twice("end of ids", suffix, &one.name, &other.name));
                }
            }
        }
        Ok(())
    }

    /// Name and socket of each runtime, the primary first.
    fn sockets(&self) -> impl Iterator<Item = (&str, &Path)> {
        let primary = (self.primary.name.as_str(), self.primary.socket.as_path());
        let others = self.secondary.iter();
        std::iter::once(primary).chain(others.map(|s| (s.name.as_str(), s.socket.as_path())))
    }
}

fn check_secondary(secondary: &Secondary) -> Result<(), Contradiction> {
    let lists = [
        ("handler", secondary.handlers.as_slice()),
        ("annotation value", secondary.target_runtimes.as_slice()),
        ("image prefix", secondary.image_prefixes.as_slice()),
    ];
    for (what, values) in lists {
        if values.iter().any(String::is_empty) {
            return Err(unusable(what, "", "an empty one would mean every pod"));
        }
    }
    if lists.iter().all(|(_, values)| values.is_empty()) {
        let reason = "nothing would ever be sent to it: give it handlers";
        return Err(unusable("secondary", &secondary.name, reason));
    }
    let Some(suffix) = &secondary.id_suffix else {
        return Ok(());
    };
    let hex = |c: char| matches!(c, '0'..='9' | 'a'..='f');
    if !(4..=63).contains(&suffix.len()) || !suffix.chars().all(hex) {
        let reason = "must be 4 to 63 lower-case hex digits";
        return Err(unusable("id_suffix", suffix, reason));
    }
    Ok(())
}

fn twice(what: &'static str, value: &str, first: &str, second: &str) -> Contradiction {
    Contradiction::Twice {
        what,
        value: value.into(),
        first: first.into(),
        second: second.into(),
    }
}

fn unusable(what: &'static str, value: &str, reason: &'static str) -> Contradiction {
    Contradiction::Unusable {
        what,
        value: value.chars().take(200).collect(),
        reason,
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
