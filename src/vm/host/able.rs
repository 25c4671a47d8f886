//! Checks whether this node can start machines at all.
//!
//! Invariant: an obstacle that was mended is seen without a restart of the daemon. A file system
//! that hangs keeps one thread, however often kubelet asks.
//! Failure: a sentence that names the setting.

use std::path::Path;
use std::sync::PoisonError;
use std::time::Duration;

use nix::unistd::{AccessFlags, access};

use super::accelerator::{self, Accelerator};
use crate::platform::Platform;
use crate::vm::error::{Error, Result};
use crate::vm::service::Containers;

/// Time for a look at the programs.
const LOOK: Duration = Duration::from_secs(1);

impl<P: Platform> Containers<P> {
    /// Probes for the accelerator until there is one; later calls answer from memory.
    pub async fn choose_accelerator(&self) -> Result<Accelerator> {
        let settings = &self.settings;
        let choose = || async {
            let choice = accelerator::choose(settings.accelerator, &settings.host()).await?;
            tracing::info!(accelerator = %choice.accelerator, reason = %choice.reason, "accelerator chosen");
            Ok::<_, Error>(choice)
        };
        let chosen = self.accelerator.get_or_try_init(choose).await;
        let why_none = chosen.as_ref().err().map(|e| crate::one_line(e));
        *self
            .no_accelerator
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = why_none;
        Ok(chosen?.accelerator)
    }

    /// Why no machine can be started, if none can.
    pub async fn obstacle(&self) -> Option<String> {
        let programs = [
            ("vm.emulator", self.settings.emulator.clone()),
            ("vm.wrapper", self.settings.wrapper.clone()),
        ];
        let look = move || {
            programs
                .iter()
                .find_map(|(setting, path)| unusable(setting, path))
        };
        let unusable = self.meter.programs.read((), LOOK, look).await;
        let unusable = unusable.unwrap_or_else(|| {
            let words = "vm.emulator and vm.wrapper: their file system does not answer";
            Some(words.to_owned())
        });
        unusable.or_else(|| {
            let none = self.no_accelerator.lock();
            none.unwrap_or_else(PoisonError::into_inner).clone()
        })
    }
}

fn unusable(setting: &str, path: &Path) -> Option<String> {
    let error = access(path, AccessFlags::X_OK).err()?;
    Some(format!(
        "{setting} = {} cannot be executed: {}",
        path.display(),
        error.desc()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_or_no_program_is_an_obstacle() {
        assert_eq!(unusable("vm.wrapper", Path::new("/bin/sh")), None);
        let missing = unusable("vm.wrapper", Path::new("/nonexistent")).unwrap();
        assert!(missing.contains("vm.wrapper = /nonexistent"), "{missing}");
        assert!(missing.contains("No such file"), "{missing}");
        let text = tempfile::NamedTempFile::new().unwrap();
        assert!(unusable("vm.emulator", text.path()).is_some());
    }
}
