//! Removes a backup.
//!
//! Invariant: a backup that another one is based on stays; one that is being removed has another name first, so that
//! none is left that is whole in part. Another node may write one that is based on it meanwhile: each looks for the other
//! after it has renamed its own.
//! Failure: the error; a repetition removes what is left.

use podspec::VmUid;

use super::directory::Directory;
use super::error::{Error, Result};
use super::{Target, removed, unfinished};

impl Target {
    /// Removes a backup of a machine, `namespace/name`; success when there is none. One whose manifest cannot be read
    /// is removed, too.
    pub async fn remove(&self, backup: VmUid, requested: &str) -> Result<()> {
        let requested = requested.to_owned();
        self.run(move |this| this.remove_now(backup, &requested))
            .await
    }

    fn remove_now(&self, backup: VmUid, requested: &str) -> Result<()> {
        let Some(machine) = self.machine()? else {
            return Ok(());
        };
        // Of this backup alone: another node may just write one of the machine.
        machine.remove(&unfinished(backup))?;
        let name = backup.to_string();
        if machine.find(&name)?.is_none() {
            return self.remove_renamed(&machine, backup);
        }
        match self.read_manifest(backup) {
            Ok(Some((manifest, _))) => manifest.check_namespace(requested)?,
            Ok(None) | Err(Error::Manifest { .. }) => {}
            Err(error) => return Err(error),
        }
        self.refuse_needed(&machine, backup)?;
        machine.remove(&removed(backup))?;
        machine.rename(&name, &removed(backup))?;
        machine.sync()?;
        faultpoint::point("backup.unnamed");
        self.remove_renamed(&machine, backup)
    }

    /// Removes a backup that has its other name, unless another node has just written one that is based on it.
    fn remove_renamed(&self, machine: &Directory, backup: VmUid) -> Result<()> {
        let old = removed(backup);
        if machine.find(&old)?.is_none() {
            return Ok(());
        }
        if let Err(error) = self.refuse_needed(machine, backup) {
            if matches!(error, Error::Needed { .. }) {
                machine.rename(&old, &backup.to_string())?;
                machine.sync()?;
            }
            return Err(error);
        }
        machine.remove(&old)?;
        machine.sync()?;
        tracing::info!(vm = %self.vm, %backup, store = self.name, "backup removed");
        Ok(())
    }

    /// Refuses the removal of a backup that another one is based on.
    fn refuse_needed(&self, machine: &Directory, backup: VmUid) -> Result<()> {
        let others = machine.names()?.into_iter();
        let others = others.filter_map(|name| name.parse::<VmUid>().ok());
        for child in others.filter(|other| *other != backup) {
            // One that cannot be read keeps no other from its removal.
            let manifest = match self.read_manifest(child) {
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
