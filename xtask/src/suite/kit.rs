//! What only some jobs need: the guest images, the tools of a cluster, the conformance suite,
//! cargo-deny. They are built beside other jobs and at a lower priority, in the order in which jobs
//! need them.
//!
//! Invariant: a job starts only when its kit is there.
//! Failure: when a kit cannot be built, the jobs that need it fail with the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::process;
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};

use super::part::Part;
use crate::commands::tools::{self, Tool};
use crate::commands::{earlier, guest, up};
use crate::run;

/// The tests whose guests are Debian.
const DEBIAN_TESTS: &str = "stacks::debian::";
/// The tests whose guests have the kernel for all machines.
const GENERIC_TESTS: &str = "stacks::nine_p::";
/// The tests with programs of an earlier version.
const VERSIONS_TESTS: [&str; 2] = ["stacks::versions::", "clusters::versions::"];
/// The tests with a storage system.
const STORAGE_TESTS: &str = "clusters::claim_snapshots::";
/// The tests of backups to a bucket.
const BUCKET_TESTS: &str = "stacks::backups_bucket::";
/// The tests of the chart.
const HELM_TESTS: &str = "api::helm::";

/// Things that belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kit {
    /// The guest image and crictl.
    Stacks,
    /// What an API server without nodes is made of.
    Api,
    /// What a whole cluster is made of.
    Clusters,
    /// critest.
    Critest,
    /// The image of Debian, on demand: it would delay the kits of the longest tests.
    Debian,
    /// The guest image with the kernel for all machines, on demand as well.
    Generic,
    /// Helm, on demand as well.
    Helm,
    /// A storage system for claims, on demand as well.
    Storage,
    /// A server that speaks S3, on demand as well.
    Bucket,
    /// The programs of an earlier version, on demand as well.
    Earlier,
    /// cargo-deny.
    Deny,
    /// check-rules.
    Rules,
}

impl Kit {
    /// What the jobs of a part need.
    pub(super) fn for_part(part: Part) -> Option<Self> {
        match part {
            Part::Fmt | Part::Clippy | Part::Doc | Part::Unit => None,
            Part::Integration | Part::Stacks => Some(Self::Stacks),
            Part::Api => Some(Self::Api),
            // One test compares conformance with and without the proxy.
            Part::Clusters | Part::Critest => Some(Self::Critest),
            Part::Deny => Some(Self::Deny),
            Part::Rules => Some(Self::Rules),
        }
    }

    /// What a test needs beside what its part needs: the others of its part do not wait for it.
    pub(super) fn of_test(name: &str) -> Option<Self> {
        let kits = [
            (DEBIAN_TESTS, Self::Debian),
            (GENERIC_TESTS, Self::Generic),
            (HELM_TESTS, Self::Helm),
            (STORAGE_TESTS, Self::Storage),
            (BUCKET_TESTS, Self::Bucket),
            (VERSIONS_TESTS[0], Self::Earlier),
            (VERSIONS_TESTS[1], Self::Earlier),
        ];
        let mut of_name = kits
            .into_iter()
            .filter(|(tests, _)| name.starts_with(tests));
        of_name.next().map(|(_, kit)| kit)
    }

    /// Those that have to be there before it, itself included, in order.
    fn with_earlier(self) -> &'static [Self] {
        match self {
            Self::Stacks => &[Self::Stacks],
            Self::Api => &[Self::Api],
            Self::Clusters => &[Self::Stacks, Self::Api, Self::Clusters],
            Self::Critest => &[Self::Stacks, Self::Api, Self::Clusters, Self::Critest],
            Self::Debian => &[Self::Stacks, Self::Debian],
            Self::Generic => &[Self::Stacks, Self::Generic],
            Self::Helm => &[Self::Api, Self::Helm],
            Self::Storage => &[Self::Stacks, Self::Api, Self::Clusters, Self::Storage],
            Self::Bucket => &[Self::Stacks, Self::Bucket],
            Self::Earlier => &[
                Self::Stacks,
                Self::Api,
                Self::Clusters,
                Self::Critest,
                Self::Earlier,
            ],
            Self::Deny => &[Self::Deny],
            Self::Rules => &[Self::Rules],
        }
    }

    fn build(self) -> Result<()> {
        match self {
            Self::Stacks => {
                guest::ensure()?;
                tools::ensure(&[Tool::Crictl])
            }
            Self::Api => tools::ensure(tools::API),
            Self::Clusters => up::prepare_cluster(),
            Self::Critest => tools::ensure(&[Tool::Critest]),
            Self::Debian => guest::ensure_debian(),
            Self::Generic => guest::ensure_generic(),
            Self::Helm => tools::ensure(&[Tool::Helm]),
            Self::Storage => tools::ensure(tools::STORAGE),
            Self::Bucket => tools::ensure(&[Tool::Versitygw]),
            Self::Earlier => earlier::ensure().map(drop),
            Self::Deny => tools::ensure(&[Tool::CargoDeny]),
            Self::Rules => tools::ensure(&[Tool::CheckRules]),
        }
    }
}

/// Which kits are there, and which cannot be built.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    kits: Mutex<BTreeMap<Kit, Result<(), String>>>,
}

impl Shelf {
    /// Builds what the parts need, at a lower priority than tests have; then what `demanded` names,
    /// until its sender is gone.
    pub(super) fn fill(&self, parts: &[Part], demanded: &Receiver<Kit>) {
        let needed = parts.iter().filter_map(|part| Kit::for_part(*part));
        let wanted: BTreeSet<Kit> = needed.flat_map(Kit::with_earlier).copied().collect();
        if wanted.is_empty() {
            return;
        }
        if let Err(error) = give_way() {
            eprintln!("kits are built at the usual priority: {error:#}");
        }
        for kit in wanted {
            self.make(kit);
        }
        self.fill_demands(demanded);
    }

    fn fill_demands(&self, demanded: &Receiver<Kit>) {
        for kit in demanded {
            for kit in kit.with_earlier() {
                self.make(*kit);
            }
        }
    }

    fn make(&self, kit: Kit) {
        if self.kits().contains_key(&kit) {
            return;
        }
        let built = kit.build().map_err(|error| format!("{error:#}"));
        if let Err(error) = &built {
            eprintln!("{kit:?}: {error}");
        }
        self.kits().insert(kit, built);
    }

    /// What became of a kit and those before it, once that is known.
    pub(super) fn state(&self, kit: Option<Kit>) -> Option<Result<(), String>> {
        let kits = self.kits();
        for kit in kit.map_or(&[][..], Kit::with_earlier) {
            match kits.get(kit) {
                Some(Ok(())) => {}
                unfinished => return unfinished.cloned(),
            }
        }
        Some(Ok(()))
    }

    fn kits(&self) -> MutexGuard<'_, BTreeMap<Kit, Result<(), String>>> {
        self.kits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How nice the thread that builds kits is, and all that it starts: a quarter of the processors
/// beside compilers, so that the longest tests, which need the most kits, do not begin when the
/// others have ended.
const NICENESS: &str = "5";

fn give_way() -> Result<()> {
    let thread = nix::unistd::gettid();
    let mut renice = run::command("renice");
    renice.args(["-n", NICENESS, "-p"]).arg(thread.to_string());
    run::output(&mut renice).map(drop).with_context(|| {
        format!(
            "lower the priority of a thread of process {}",
            process::id()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kit_is_there_when_those_before_it_are() {
        let shelf = Shelf::default();
        assert_eq!(shelf.state(None), Some(Ok(())));
        assert_eq!(shelf.state(Some(Kit::Clusters)), None);
        shelf.kits().insert(Kit::Stacks, Ok(()));
        assert_eq!(shelf.state(Some(Kit::Stacks)), Some(Ok(())));
        assert_eq!(shelf.state(Some(Kit::Clusters)), None);
        shelf.kits().insert(Kit::Api, Err("no Go".to_owned()));
        let failed = Some(Err("no Go".to_owned()));
        assert_eq!(shelf.state(Some(Kit::Clusters)), failed);
    }

    #[test]
    fn a_demand_for_what_is_there_builds_nothing() {
        let shelf = Shelf::default();
        let failed = Err("no mirror".to_owned());
        shelf.kits().insert(Kit::Stacks, Ok(()));
        shelf.kits().insert(Kit::Debian, failed.clone());
        let (demand, demanded) = std::sync::mpsc::channel();
        demand.send(Kit::Debian).unwrap();
        drop(demand);
        shelf.fill_demands(&demanded);
        assert_eq!(shelf.state(Some(Kit::Debian)), Some(failed));
    }

    #[test]
    fn only_tests_with_that_guest_wait_for_it() {
        assert_eq!(Kit::of_test("stacks::debian::x"), Some(Kit::Debian));
        assert_eq!(Kit::of_test("stacks::nine_p::x"), Some(Kit::Generic));
        assert_eq!(Kit::of_test("api::helm::render::x"), Some(Kit::Helm));
        let storage = Kit::of_test("clusters::claim_snapshots::x");
        assert_eq!(storage, Some(Kit::Storage));
        let bucket = Kit::of_test("stacks::backups_bucket::x");
        assert_eq!(bucket, Some(Kit::Bucket));
        assert_eq!(Kit::of_test("stacks::backups::x"), None);
        assert_eq!(Kit::of_test("clusters::claims::x"), None);
        assert_eq!(Kit::of_test("stacks::disks::debian::x"), None);
    }
}
