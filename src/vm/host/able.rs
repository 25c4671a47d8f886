//! Checks whether this node can start machines at all.
//!
//! Invariant: an obstacle that was mended is seen without a restart of the daemon, also one that has
//! led to software emulation. A file system that hangs keeps one thread, however often kubelet asks.
//! Failure: a sentence that names the setting.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libvirt::Hypervisor;
use nix::unistd::{AccessFlags, access};
use uuid::Uuid;

use super::accelerator::{self, Accelerator, Choice, Host, Setting};
use crate::platform::Platform;
use crate::vm::error::{Result, hypervisor};
use crate::vm::service::Containers;

/// Time for a look at the programs.
const LOOK: Duration = Duration::from_secs(1);

/// Why no machine can be started, as last seen; each is a sentence.
#[derive(Debug, Default)]
pub(in crate::vm) struct Obstacles {
    /// Why the last probe found no accelerator.
    accelerator: Mutex<Option<String>>,
    /// Why libvirt does not execute the wrapper.
    emulator: Mutex<Option<String>>,
}

impl<P: Platform> Containers<P> {
    /// Probes for the accelerator until there is one; later calls answer from memory.
    pub async fn choose_accelerator(&self) -> Result<Accelerator> {
        if let Some(chosen) = self.accelerator() {
            return Ok(chosen.accelerator);
        }
        let _turn = self.probing.lock().await;
        if let Some(chosen) = self.accelerator() {
            return Ok(chosen.accelerator);
        }
        let setting = self.adjustable().accelerator;
        let chosen = accelerator::choose(setting, &self.settings.host()).await;
        let why_none = chosen.as_ref().err().map(|e| crate::one_line(e));
        *lock(&self.obstacles.accelerator) = why_none;
        Ok(self.take_choice(chosen?))
    }

    /// Probes again where `auto` has led to software emulation: the reason may be over. Machines
    /// that run stay as they are.
    pub async fn reconsider_accelerator(&self) {
        self.reconsider_on(&self.settings.host()).await;
    }

    pub(super) async fn reconsider_on(&self, host: &Host) {
        let _turn = self.probing.lock().await;
        let setting = self.adjustable().accelerator;
        let chosen = self.accelerator();
        let Some(before) = chosen.filter(|c| c.is_fallback(setting)) else {
            return;
        };
        match accelerator::choose_again(setting, host).await {
            Ok(choice) if choice != before => {
                self.take_choice(choice);
            }
            Ok(_) => {}
            Err(e) => {
                let error = crate::one_line(&e);
                tracing::warn!(error, "accelerator not chosen again");
            }
        }
    }

    /// Finds out how guests would run with another setting; nothing changes. With `kvm`, the answer
    /// of an earlier probe counts as long as it does with `auto`.
    ///
    /// # Errors
    ///
    /// Why guests cannot run with it.
    pub async fn try_accelerator(&self, setting: Setting) -> Result<Choice, String> {
        self.try_on(setting, &self.settings.host()).await
    }

    pub(super) async fn try_on(&self, setting: Setting, host: &Host) -> Result<Choice, String> {
        let _turn = self.probing.lock().await;
        let tried = match setting {
            Setting::Tcg => Setting::Tcg,
            Setting::Auto | Setting::Kvm => Setting::Auto,
        };
        let choice = accelerator::choose_again(tried, host).await;
        let choice = choice.map_err(|e| crate::one_line(&e))?;
        if setting == Setting::Kvm && choice.accelerator == Accelerator::Tcg {
            return Err(format!("kvm does not work on this node: {}", choice.reason));
        }
        Ok(choice)
    }

    /// Uses another setting for machines that start from now on.
    pub async fn switch_accelerator(&self, setting: Setting) {
        if self.adjustable().accelerator != setting {
            self.switch_on(setting, &self.settings.host()).await;
        }
    }

    pub(super) async fn switch_on(&self, setting: Setting, host: &Host) {
        let found = self.try_on(setting, host).await;
        let _turn = self.probing.lock().await;
        self.change(|adjustable| adjustable.accelerator = setting);
        let none = found.as_ref().err().cloned();
        *lock(&self.obstacles.accelerator) = none;
        if let Ok(choice) = found {
            self.take_choice(choice);
        } else {
            // The next round, or the next start, probes again.
            let chosen = self.accelerator.lock();
            *chosen.unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// Whether a machine runs by software emulation. The node may do better by now.
    pub(in crate::vm) async fn is_emulated(&self, domain: Uuid) -> Result<bool> {
        let emulated = self.parts.hypervisor.is_emulated(domain).await;
        Ok(emulated.map_err(hypervisor("look at"))? == Some(true))
    }

    fn take_choice(&self, choice: Choice) -> Accelerator {
        let Choice {
            accelerator,
            reason,
        } = &choice;
        if choice.is_fallback(self.adjustable().accelerator) {
            tracing::warn!(%accelerator, reason, "no KVM: machines run by software emulation, many times slower");
        } else {
            tracing::info!(%accelerator, reason, "accelerator chosen");
        }
        let accelerator = *accelerator;
        let mut chosen = self
            .accelerator
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *chosen = Some(choice);
        accelerator
    }

    /// Why `auto` has led to software emulation, if it has.
    pub fn emulated_because(&self) -> Option<String> {
        let chosen = self.accelerator();
        let fallback = chosen.filter(|c| c.is_fallback(self.adjustable().accelerator));
        fallback.map(|choice| choice.reason)
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
        let noted = || lock(&self.obstacles.emulator).clone();
        let none = || lock(&self.obstacles.accelerator).clone();
        let obstacle = unusable.or_else(noted);
        match self.check_landlock().await {
            Err(error) if obstacle.is_none() => Some(error.to_string()),
            _ => obstacle.or_else(none),
        }
    }

    /// Has libvirt execute `vm.wrapper` as it does before each start; returns whether it did, or
    /// could not be asked.
    pub async fn check_emulator(&self) -> bool {
        let wrapper = self.settings.wrapper.clone();
        let checked = self.parts.hypervisor.check_emulator(wrapper).await;
        let obstacle = match checked {
            Ok(()) => None,
            // What is known stays true; the next connection asks again.
            Err(e) if !matches!(e, libvirt::Error::Refused { .. }) => return true,
            Err(e) => Some(refused(&self.settings.wrapper, &crate::one_line(&e))),
        };
        let mut noted = lock(&self.obstacles.emulator);
        if let Some(error) = obstacle.as_deref().filter(|_| *noted != obstacle) {
            tracing::error!(error, "node cannot start virtual machines");
        }
        *noted = obstacle;
        noted.is_none()
    }
}

fn refused(wrapper: &Path, error: &str) -> String {
    format!(
        "libvirt cannot execute vm.wrapper = {}: {error}; where AppArmor confines libvirtd, its \
         profile must allow this program: add the line of deploy/apparmor to its local include",
        wrapper.display()
    )
}

fn lock(noted: &Mutex<Option<String>>) -> MutexGuard<'_, Option<String>> {
    noted.lock().unwrap_or_else(PoisonError::into_inner)
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
