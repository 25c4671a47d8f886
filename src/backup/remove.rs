//! Removes a backup.
//!
//! Invariant: a backup that another one is based on stays; one that is being removed is hidden first, so that none is left
//! that is whole in part. Another node may write one that is based on it meanwhile: each looks for the other after it has
//! published or hidden its own.
//! Failure: the error; a repetition removes what is left.

use podspec::VmUid;

use super::Target;
use super::error::{Error, Result};

impl Target {
    /// Removes a backup of a machine, `namespace/name`; success when there is none. One whose manifest cannot be read
    /// is removed, too.
    pub async fn remove(&self, backup: VmUid, requested: &str) -> Result<()> {
        // Of this backup alone: another node may just write one of the machine.
        self.store.discard(backup).await?;
        if !self.store.has(backup).await? {
            return self.remove_hidden(backup).await;
        }
        match self.manifest(backup).await {
            Ok(Some((manifest, _))) => manifest.check_namespace(requested)?,
            Ok(None) | Err(Error::Manifest { .. }) => {}
            Err(error) => return Err(error),
        }
        self.refuse_needed(backup).await?;
        self.store.hide(backup).await?;
        faultpoint::point("backup.unnamed");
        self.remove_hidden(backup).await
    }

    /// Removes a backup that is hidden, unless another node has just written one that is based on it.
    async fn remove_hidden(&self, backup: VmUid) -> Result<()> {
        if !self.store.is_hidden(backup).await? {
            return Ok(());
        }
        if let Err(error) = self.refuse_needed(backup).await {
            if matches!(error, Error::Needed { .. }) {
                self.store.show(backup).await?;
            }
            return Err(error);
        }
        self.store.erase(backup).await?;
        tracing::info!(vm = %self.vm, %backup, store = self.name, "backup removed");
        Ok(())
    }

    /// Refuses the removal of a backup that another one is based on.
    async fn refuse_needed(&self, backup: VmUid) -> Result<()> {
        let others = self.store.backups().await?.into_iter();
        for child in others.filter(|other| *other != backup) {
            // One that cannot be read keeps no other from its removal.
            let manifest = match self.manifest(child).await {
                Err(Error::Manifest { .. } | Error::NotPlain(_)) => None,
                read => read?,
            };
            let parent = manifest.and_then(|(manifest, _)| manifest.parent);
            if parent.is_some_and(|parent| parent.uid == backup) {
                return Err(Error::Needed { backup, child });
            }
        }
        Ok(())
    }
}
