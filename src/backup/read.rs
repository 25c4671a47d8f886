//! Reads manifests.
//!
//! Invariant: a manifest is that of the backup whose directory it is in, and of the digest that was expected.
//! Failure: [`Error`] says which backup it is about.

use podspec::VmUid;

use super::Target;
use super::chain::Chain;
use super::error::{Error, Result};
use super::manifest::{LONGEST, Manifest};
use super::write::{MANIFEST, sum};
use crate::images::Digest;

/// The most backups of one chain.
pub(super) const MOST: usize = 64;

impl Target {
    /// The manifest of a backup and its digest; none: there is no such backup.
    pub async fn manifest(&self, uid: VmUid) -> Result<Option<(Manifest, Digest)>> {
        let Some(text) = self.store.manifest(uid).await? else {
            return Ok(None);
        };
        if text.is_empty() {
            return Err(self.odd(uid, "it is gone, or empty".to_owned()));
        }
        if text.len() as u64 > LONGEST {
            return Err(self.odd(uid, format!("it has more than {LONGEST} bytes")));
        }
        let manifest = Manifest::parse(&text, self.vm, uid);
        let manifest = manifest.map_err(|reason| self.odd(uid, reason))?;
        Ok(Some((manifest, sum(&text))))
    }

    /// A backup and those that it is based on. `expected`: the digest of its manifest, where that is known.
    pub async fn chain(&self, uid: VmUid, expected: Option<Digest>) -> Result<Chain> {
        let mut backups: Vec<(Manifest, Digest)> = Vec::new();
        let mut next = Some((uid, expected));
        while let Some((uid, expected)) = next {
            let found = self.manifest(uid).await?;
            let Some((manifest, sha256)) = found else {
                return Err(self.missing(uid).await);
            };
            if expected.is_some_and(|expected| expected != sha256) {
                let file = MANIFEST.to_owned();
                let reason = format!("its SHA-256 is {}", sha256.hex());
                return Err(self.spoiled(uid, file, reason));
            }
            if backups.len() == MOST {
                let reason = format!("more than {MOST} backups are based on each other");
                return Err(self.odd(uid, reason));
            }
            next = manifest
                .parent
                .map(|parent| (parent.uid, Some(parent.sha256)));
            backups.push((manifest, sha256));
        }
        Ok(Chain::new(self.clone(), backups))
    }

    /// Why there is no backup: who removes one leaves the directory of the machine.
    async fn missing(&self, backup: VmUid) -> Error {
        match self.store.knows_machine().await {
            Ok(true) => self.absent(backup),
            Ok(false) => Error::Empty {
                vm: self.vm,
                target: self.name.clone(),
            },
            Err(error) => error,
        }
    }

    fn absent(&self, backup: VmUid) -> Error {
        let target = self.name.clone();
        Error::Absent { backup, target }
    }

    pub(super) fn odd(&self, backup: VmUid, reason: String) -> Error {
        let target = self.name.clone();
        Error::Manifest {
            backup,
            target,
            reason,
        }
    }

    pub(super) fn spoiled(&self, backup: VmUid, file: String, reason: String) -> Error {
        Error::Spoiled {
            backup,
            target: self.name.clone(),
            file,
            reason,
        }
    }
}
