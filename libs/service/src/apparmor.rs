//! The state of an AppArmor profile in the kernel.
//!
//! Invariant: only files of the kernel are read; the state is that of the kernel, whatever the files
//! of the profile say.
//! Failure: [`State::Unknown`] where the kernel does not show its profiles.

use std::fmt;
use std::path::Path;

/// Whether AppArmor is on: `Y` or `N`.
const ENABLED: &str = "sys/module/apparmor/parameters/enabled";
/// A directory for each profile that is loaded: its name, a dot and a number.
const PROFILES: &str = "sys/kernel/security/apparmor/policy/profiles";

/// The state of a profile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum State {
    /// AppArmor is on, and the profiles cannot be listed.
    #[default]
    Unknown,
    /// The kernel has no AppArmor, or it is off.
    Disabled,
    /// It is not loaded.
    Absent,
    /// It is loaded, and only logs what it would refuse.
    Complaining,
    /// It is loaded and holds.
    Enforced,
}

impl State {
    /// The state of this word; unknown for another one.
    #[must_use]
    pub fn parse(word: &str) -> Self {
        let known = [
            Self::Disabled,
            Self::Absent,
            Self::Complaining,
            Self::Enforced,
        ];
        let found = known.into_iter().find(|state| state.as_str() == word);
        found.unwrap_or_default()
    }

    /// One word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Disabled => "disabled",
            Self::Absent => "absent",
            Self::Complaining => "complaining",
            Self::Enforced => "enforced",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The state of the profile `name` on the node whose file system is mounted at `root`. Blocks.
#[must_use]
pub fn profile(root: &Path, name: &str) -> State {
    let enabled = std::fs::read_to_string(root.join(ENABLED));
    if !enabled.is_ok_and(|text| text.starts_with('Y')) {
        return State::Disabled;
    }
    let Ok(profiles) = std::fs::read_dir(root.join(PROFILES)) else {
        return State::Unknown;
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let found = profiles.flatten().find(|entry| {
        let directory = entry.file_name();
        let rest = directory.to_str().and_then(|d| d.strip_prefix(name));
        let number = rest.and_then(|rest| rest.strip_prefix('.'));
        number.is_some_and(is_number)
    });
    let Some(found) = found else {
        return State::Absent;
    };
    match std::fs::read_to_string(found.path().join("mode")) {
        Ok(mode) if mode.trim() == "complain" => State::Complaining,
        Ok(mode) if mode.trim() == "unconfined" => State::Absent,
        Ok(_) => State::Enforced,
        Err(_) => State::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::no_apparmor(None, None, State::Disabled)]
    #[case::off(Some("N\n"), None, State::Disabled)]
    #[case::not_shown(Some("Y\n"), None, State::Unknown)]
    #[case::another(Some("Y\n"), Some(("x-more.7", "enforce\n")), State::Absent)]
    #[case::a_child(Some("Y\n"), Some(("x.child.7", "enforce\n")), State::Absent)]
    #[case::enforced(Some("Y\n"), Some(("x.7", "enforce\n")), State::Enforced)]
    #[case::complains(Some("Y\n"), Some(("x.12", "complain\n")), State::Complaining)]
    #[case::confines_nothing(Some("Y\n"), Some(("x.12", "unconfined\n")), State::Absent)]
    fn the_state_of_a_profile_is_that_of_the_kernel(
        #[case] enabled: Option<&str>,
        #[case] loaded: Option<(&str, &str)>,
        #[case] expected: State,
    ) {
        let root = tempfile::tempdir().unwrap();
        if let Some(enabled) = enabled {
            let file = root.path().join(ENABLED);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, enabled).unwrap();
        }
        if let Some((directory, mode)) = loaded {
            let directory = root.path().join(PROFILES).join(directory);
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("mode"), mode).unwrap();
        }
        assert_eq!(profile(root.path(), "x"), expected);
        assert_eq!(State::parse(expected.as_str()), expected);
    }
}
