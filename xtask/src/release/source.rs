//! The commit that a release is made of, and the version that follows.
//!
//! Invariant: times are those of the commit, so that a later build of it has the same. A version that is not
//! announced has its commit in it.
//! Failure: git's message.

use std::fmt;

use anyhow::{Context, Result, ensure};

use crate::{run, workspace};

/// Digits of a commit in the version of a snapshot.
const SHORT: usize = 10;

/// What is checked out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Commit {
    /// 40 hexadecimal digits.
    pub(crate) id: String,
    /// Seconds since 1970.
    pub(crate) time: u64,
    /// The same as `2026-11-28T12:00:00Z`.
    pub(crate) date: String,
    /// Whether files differ from it.
    pub(crate) changed: bool,
}

impl Commit {
    /// The commit of the checkout.
    pub(crate) fn read() -> Result<Self> {
        let log = git(&[
            "log",
            "-1",
            "--date=format-local:%Y-%m-%dT%H:%M:%SZ",
            "--format=%H %ct %cd",
        ])?;
        let changes = git(&["status", "--porcelain"])?;
        Self::parse(log.trim(), !changes.trim().is_empty())
    }

    fn parse(log: &str, changed: bool) -> Result<Self> {
        let mut words = log.split(' ').map(str::to_owned);
        let mut word = || words.next().context("git log prints too little");
        Ok(Self {
            id: word()?,
            time: word()?.parse().context("read the time of the commit")?,
            date: word()?,
            changed,
        })
    }
}

fn git(words: &[&str]) -> Result<String> {
    let mut git = run::command("git");
    let git = git.args(words).env("TZ", "UTC");
    run::output(git.current_dir(workspace::root()))
}

/// The version of everything in a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version(String);

impl Version {
    /// A version that the changelog announces.
    pub(crate) fn release(number: &str, commit: &Commit) -> Result<Self> {
        ensure!(
            !commit.changed,
            "files of the checkout are not committed, and a release is made of a commit; --snapshot makes a build \
             that is no release"
        );
        Ok(Self(number.to_owned()))
    }

    /// A build that is no release. It sorts before the version itself.
    pub(crate) fn snapshot(number: &str, commit: &Commit) -> Self {
        let id = commit.id.get(..SHORT).unwrap_or(&commit.id);
        let changed = if commit.changed { ".changed" } else { "" };
        Self(format!("{number}-snapshot.g{id}{changed}"))
    }

    /// The version in the form of Debian, where a hyphen would begin a revision.
    pub(crate) fn of_debian(&self) -> String {
        self.0.replace('-', "~")
    }
}

impl fmt::Display for Version {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commit(changed: bool) -> Commit {
        let log = "0123456789abcdef0123456789abcdef01234567 1795867200 2026-11-28T12:00:00Z";
        Commit::parse(log, changed).unwrap()
    }

    #[test]
    fn a_release_is_made_of_a_commit_alone() {
        let version = Version::release("0.2.0", &commit(false)).unwrap();
        assert_eq!(version.to_string(), "0.2.0");
        assert_eq!(version.of_debian(), "0.2.0");
        let error = Version::release("0.2.0", &commit(true)).unwrap_err();
        assert!(error.to_string().contains("--snapshot"), "{error}");
    }

    #[test]
    fn a_snapshot_has_its_commit_in_its_version_and_says_that_files_changed() {
        let version = Version::snapshot("0.2.0", &commit(false));
        assert_eq!(version.to_string(), "0.2.0-snapshot.g0123456789");
        assert_eq!(version.of_debian(), "0.2.0~snapshot.g0123456789");
        let version = Version::snapshot("0.2.0", &commit(true));
        assert_eq!(version.to_string(), "0.2.0-snapshot.g0123456789.changed");
    }

    #[test]
    fn the_commit_of_this_checkout_has_its_time_in_both_forms() {
        let commit = Commit::read().unwrap();
        assert_eq!(commit.id.len(), 40);
        let mut date = run::command("date");
        date.args(["--utc", "+%Y-%m-%dT%H:%M:%SZ"]);
        let date = run::output(date.arg(format!("--date=@{}", commit.time))).unwrap();
        assert_eq!(commit.date, date.trim());
    }
}
