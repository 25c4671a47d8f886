//! How the user calls this program: by its own name, or as a plugin of kubectl.
//!
//! Invariant: a hint can be typed as it is printed.
//! Failure: none; a name that is not known counts as our own.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::path::Path;

/// Our name, with which all hints are written.
const PROGRAM: &str = "vmletctl";
/// The file that kubectl looks for, and what the user types then.
const PLUGIN: (&str, &str) = ("kubectl-vmlet", "kubectl vmlet");

/// What the user types, when it is not our name.
pub(crate) fn plugin() -> Option<&'static str> {
    typed(std::env::args_os().next().as_deref())
}

/// A text with hints, in the words of this call.
pub(crate) fn adapted(text: &str) -> Cow<'_, str> {
    hints(text, plugin())
}

fn typed(called: Option<&OsStr>) -> Option<&'static str> {
    let name = Path::new(called?).file_name()?;
    (name == PLUGIN.0).then_some(PLUGIN.1)
}

fn hints<'a>(text: &'a str, plugin: Option<&str>) -> Cow<'a, str> {
    match plugin {
        Some(plugin) => text
            .replace(&format!("{PROGRAM} "), &format!("{plugin} "))
            .into(),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_of_the_plugin_name_the_plugin() {
        let hint = "vmletctl list shows what is there";
        let by = |name: &str| hints(hint, typed(Some(OsStr::new(name)))).into_owned();
        assert_eq!(by("/usr/local/bin/vmletctl"), hint);
        assert_eq!(
            by("/usr/local/bin/kubectl-vmlet"),
            "kubectl vmlet list shows what is there"
        );
        assert_eq!(typed(None), None);
    }
}
