//! Modules of end-to-end test programs.
//!
//! Invariant: a module is affected by each module that it uses, over any number of steps; the root of a
//! program is all of it.
//! Failure: none.

use std::collections::{BTreeMap, BTreeSet};

/// Where the programs are.
const FOLDER: &str = "tests/e2e/tests/";

/// A module at the top of a program, with all below it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Module<'a> {
    program: &'a str,
    /// `None` for the root.
    name: Option<&'a str>,
}

impl<'a> Module<'a> {
    /// The module that a file belongs to.
    pub(super) fn of_file(file: &'a str) -> Option<Self> {
        let (program, rest) = file.strip_prefix(FOLDER)?.split_once('/')?;
        let first = rest.split('/').next().unwrap_or(rest);
        let name = first.strip_suffix(".rs").unwrap_or(first);
        Some(Self {
            program,
            name: (name != "main").then_some(name),
        })
    }

    /// The beginnings of the names of its tests, and of those of the modules that use it.
    pub(super) fn with_users(&self, sources: &BTreeMap<String, String>) -> BTreeSet<String> {
        let Some(name) = self.name else {
            return BTreeSet::from([self.program.to_owned()]);
        };
        let mut reached = BTreeSet::new();
        let mut ahead = vec![name];
        while let Some(module) = ahead.pop() {
            if reached.insert(module) {
                let all = sources.iter();
                ahead.extend(all.filter_map(|(file, text)| {
                    let other = Module::of_file(file)?;
                    let is_user = other.program == self.program && uses(text, module);
                    other.name.filter(|_| is_user)
                }));
            }
        }
        let tests = reached.into_iter();
        tests
            .map(|module| format!("{}::{module}", self.program))
            .collect()
    }
}

/// Whether a source names something in a module.
fn uses(text: &str, module: &str) -> bool {
    let path = format!("{module}::");
    text.match_indices(&path).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}
