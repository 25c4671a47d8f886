//! Chooses the accelerator: KVM or software emulation.
//!
//! Invariant: KVM is chosen only after a guest has executed under it, as QEMU's own user and no
//! slower than without it: a `/dev/kvm` that opens but runs nothing, or crawls, exists (nested
//! hosts).
//! Failure: with `auto` never, it falls back to translation and states why; with `kvm` the reason
//! is an error.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use service::boot_id;

mod cache;
mod probe;

use cache::Key;
use probe::Verdict;

/// Time for the probe guest to execute its first instructions; they take a tenth of a second.
const PROBE_DEADLINE: Duration = Duration::from_secs(5);

/// How long a refusal holds while machines are emulated for it.
const AGAIN: Duration = Duration::from_secs(300);

/// How a guest's instructions are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accelerator {
    /// By the processor, through `/dev/kvm`.
    Kvm,
    /// By QEMU's translator.
    Tcg,
}

/// What the configuration requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Setting {
    /// KVM where it works, else translation.
    #[default]
    Auto,
    /// KVM or nothing.
    Kvm,
    /// Translation, also where KVM works.
    Tcg,
}

/// What guests run under, and why; the reason is a sentence for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// How guests run.
    pub accelerator: Accelerator,
    /// Why.
    pub reason: String,
}

/// What is probed, and as whom.
#[derive(Debug, Clone)]
pub struct Host {
    emulator: PathBuf,
    uid: u32,
    gid: u32,
    cache_dir: PathBuf,
    /// The file that states which boot of the kernel this is.
    boot_id_file: PathBuf,
    device: PathBuf,
    deadline: Duration,
    quick: Duration,
}

/// KVM is demanded and does not work.
#[derive(Debug, thiserror::Error)]
#[error("kvm is required, but {reason}")]
pub struct Error {
    reason: String,
}

/// A setting that is not one of the three.
#[derive(Debug, thiserror::Error)]
#[error("accelerator is {0:?}, expected auto, kvm or tcg")]
pub struct SettingError(String);

/// Chooses how guests run. Takes a fraction of a second where KVM works, up to twelve seconds where
/// it does not, and no time when the answer of an earlier run still holds.
pub async fn choose(setting: Setting, host: &Host) -> Result<Choice, Error> {
    choose_within(setting, host, cache::REFUSAL_HOLDS).await
}

/// The same for a node that emulates: an earlier refusal is believed for minutes only, and not at
/// all once the device has changed.
pub async fn choose_again(setting: Setting, host: &Host) -> Result<Choice, Error> {
    choose_within(setting, host, AGAIN).await
}

async fn choose_within(
    setting: Setting,
    host: &Host,
    refusal_holds: Duration,
) -> Result<Choice, Error> {
    if setting == Setting::Tcg {
        return Ok(Choice::tcg("the configuration says tcg".to_owned()));
    }
    let verdict = host.verdict(setting, refusal_holds).await;
    match (setting, verdict) {
        (_, Verdict::Executed { reason }) => Ok(Choice {
            accelerator: Accelerator::Kvm,
            reason,
        }),
        (Setting::Kvm, Verdict::Failed { reason }) => Err(Error { reason }),
        (_, Verdict::Failed { reason }) => Ok(Choice::tcg(reason)),
    }
}

impl Host {
    /// Guests are run by the program `emulator`, QEMU itself, as this user with this group.
    /// Answers are kept in `cache_dir`.
    pub fn new(
        emulator: impl Into<PathBuf>,
        uid: u32,
        gid: u32,
        cache_dir: impl Into<PathBuf>,
    ) -> Self {
        Self {
            emulator: emulator.into(),
            uid,
            gid,
            cache_dir: cache_dir.into(),
            boot_id_file: boot_id::KERNEL.into(),
            device: PathBuf::from("/dev/kvm"),
            deadline: PROBE_DEADLINE,
            quick: probe::QUICK,
        }
    }

    /// The same, on the boot that this file names.
    pub fn with_boot_id_file(self, file: impl Into<PathBuf>) -> Self {
        Self {
            boot_id_file: file.into(),
            ..self
        }
    }

    async fn verdict(&self, setting: Setting, refusal_holds: Duration) -> Verdict {
        let key = match Key::of(self).await {
            Ok(key) => key,
            Err(reason) => return Verdict::Failed { reason },
        };
        match cache::load(&self.cache_dir, &key, refusal_holds).await {
            Some(executed @ Verdict::Executed { .. }) => return executed,
            // An operator who requires KVM may just have repaired it.
            Some(failed) if setting == Setting::Auto => return failed,
            _ => {}
        }
        let verdict = probe::kvm(self).await;
        tracing::info!(?verdict, "accelerator probe completed");
        cache::store(&self.cache_dir, &key, &verdict).await;
        verdict
    }

    fn device(&self) -> &Path {
        &self.device
    }
}

impl Choice {
    /// Whether it is software emulation that was not requested.
    pub(in crate::vm) fn is_fallback(&self, setting: Setting) -> bool {
        setting == Setting::Auto && self.accelerator == Accelerator::Tcg
    }

    const fn tcg(reason: String) -> Self {
        Self {
            accelerator: Accelerator::Tcg,
            reason,
        }
    }
}

impl Accelerator {
    /// QEMU's name for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Setting {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text {
            "auto" => Ok(Self::Auto),
            "kvm" => Ok(Self::Kvm),
            "tcg" => Ok(Self::Tcg),
            other => Err(SettingError(other.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests;
