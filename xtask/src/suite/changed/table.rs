//! Which tests run a program, and which depend on a file that cargo does not know.
//!
//! Invariant: the longest row that a path begins with counts, and outweighs the package of the file.
//! Failure: none.

/// The tests that run what a package builds. A package without a row has tests of its own alone.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("vmlet", &["stacks", "clusters", "critest"]),
    ("tapmanager", &["stacks", "clusters", "critest"]),
    ("vmwrapper", &["stacks", "clusters", "critest"]),
    ("vmlet-virtiofsd", &["stacks", "clusters", "critest"]),
    ("vmlet-guest", &["stacks", "clusters", "critest"]),
    ("criproxy", &["clusters"]),
    ("vmlet-controller", &["api", "clusters"]),
    ("vmlet-agent", &["api", "clusters"]),
    ("vmletctl", &["stacks", "api", "clusters"]),
    ("vmlet-installer", &["clusters::deploy"]),
    // Those drive the tests, or set up what they run in.
    ("e2e", &["stacks", "api", "clusters"]),
    ("xtask", &["stacks", "api", "clusters", "critest"]),
];

/// The tests of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tests {
    /// Each test of the suite.
    All,
    /// Those whose names begin so, by whole segments.
    Named(&'static [&'static str]),
}

/// The tests that depend on the files whose paths begin so.
const FILES: &[(&str, Tests)] = &[
    (".cargo/", Tests::All),
    (".ci/", Tests::Named(&["xtask"])),
    (".gitignore", Tests::Named(&[])),
    ("CHANGELOG.md", Tests::Named(&["xtask"])),
    ("CONTRIBUTING.md", Tests::Named(&["xtask"])),
    ("Cargo.lock", Tests::All),
    ("Cargo.toml", Tests::All),
    ("LICENSE", Tests::Named(&["xtask"])),
    ("NOTICE", Tests::Named(&["xtask"])),
    ("README.md", Tests::Named(&["xtask"])),
    ("SECURITY.md", Tests::Named(&["xtask"])),
    ("clippy.toml", Tests::Named(&[])),
    ("deny.toml", Tests::Named(&["deny"])),
    (
        "deploy/",
        Tests::Named(&["xtask", "crds", "stacks", "api", "clusters"]),
    ),
    ("deploy/apparmor/", Tests::Named(&["xtask"])),
    ("deploy/chart/", Tests::Named(&["xtask", "api::helm"])),
    ("deploy/deb/", Tests::Named(&["xtask"])),
    ("deploy/grafana/", Tests::Named(&["xtask", "rules"])),
    ("deploy/installer/", Tests::Named(&["xtask"])),
    ("deploy/prometheus/", Tests::Named(&["xtask", "rules"])),
    ("deploy/systemd/", Tests::Named(&["xtask"])),
    ("docs/", Tests::Named(&["xtask", "api::rules"])),
    ("docs/adr/", Tests::Named(&["xtask"])),
    (
        "docs/kinds/",
        Tests::Named(&["xtask", "crds", "api::rules"]),
    ),
    ("examples/", Tests::Named(&["xtask", "api::rules"])),
    ("fuzz/", Tests::Named(&["fuzzchecks"])),
    ("rust-toolchain.toml", Tests::All),
    ("rustfmt.toml", Tests::Named(&[])),
    (
        "src/network.rs",
        Tests::Named(&["vmlet", "tapmanager", "stacks", "clusters", "critest"]),
    ),
    (
        "src/testkit/network",
        Tests::Named(&["vmlet", "tapmanager"]),
    ),
    ("tests/critest/", Tests::Named(&["xtask", "critest"])),
    ("tests/e2e/src/bench", Tests::Named(&["e2e"])),
    ("tests/e2e/src/bin/", Tests::Named(&["e2e"])),
    (
        "tests/e2e/src/chaos",
        Tests::Named(&["e2e", "clusters::chaos"]),
    ),
    ("tests/e2e/weights.tsv", Tests::Named(&["xtask"])),
    ("tests/fixtures/", Tests::Named(&["xtask"])),
    (
        "tests/fixtures/state/",
        Tests::Named(&[
            "vmlet",
            "tapmanager",
            "cni",
            "criproxy",
            "vmlet-controller",
            "vmlet-agent",
        ]),
    ),
    ("tests/machine/", Tests::Named(&["xtask"])),
    ("tests/manifest.tsv", Tests::Named(&["xtask"])),
    (
        "tests/tools/",
        Tests::Named(&["xtask", "stacks", "api", "clusters", "critest", "rules"]),
    ),
    ("tests/unsteady.tsv", Tests::Named(&["xtask"])),
    ("xtask/machine/", Tests::Named(&["xtask"])),
    ("xtask/src/chart", Tests::Named(&["xtask", "api::helm"])),
    ("xtask/src/commands/bench", Tests::Named(&["xtask"])),
    ("xtask/src/commands/test.rs", Tests::Named(&["xtask"])),
    ("xtask/src/deb", Tests::Named(&["xtask"])),
    ("xtask/src/machine", Tests::Named(&["xtask"])),
    ("xtask/src/release", Tests::Named(&["xtask"])),
    ("xtask/src/suite", Tests::Named(&["xtask"])),
    ("xtask/tests/", Tests::Named(&["xtask"])),
];

/// The tests of the row of a file.
pub(super) fn row(file: &str) -> Option<Tests> {
    let rows = FILES.iter().filter(|(path, _)| file.starts_with(path));
    let longest = rows.max_by_key(|(path, _)| path.len());
    longest.map(|(_, tests)| *tests)
}

/// The tests that run what a package builds.
pub(super) fn of_program(package: &str) -> &'static [&'static str] {
    let mut rows = PROGRAMS.iter().filter(|(name, _)| *name == package);
    rows.next().map_or(&[], |(_, tests)| tests)
}

#[cfg(test)]
impl Tests {
    fn names(self) -> &'static [&'static str] {
        if let Self::Named(names) = self {
            return names;
        }
        &[]
    }
}

/// The paths of all rows.
#[cfg(test)]
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(path, _)| *path)
}

/// The packages and the tests that the tables name.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let of_files = FILES.iter().flat_map(|(_, tests)| tests.names());
    let of_programs = PROGRAMS.iter().flat_map(|(_, tests)| tests.iter());
    let packages = PROGRAMS.iter().map(|(package, _)| package);
    of_files.chain(of_programs).chain(packages).copied()
}
