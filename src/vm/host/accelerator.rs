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

/// How long a refusal is believed by a daemon that starts.
const AT_START: Duration = Duration::from_secs(3600);

/// How long the first refusal holds while machines are emulated for it. Each further one in a row
/// holds twice as long: a probe costs processor time, and a nested KVM that is broken may end the
/// node.
const FIRST: Duration = Duration::from_secs(300);

/// How often that time is doubled: it ends at five hours and twenty minutes.
const DOUBLED: u32 = 6;

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
    choose_unless(setting, host, |_| AT_START).await
}

/// The same for a node that emulates: a first refusal is believed for minutes only, and none once
/// the device has changed.
pub async fn choose_again(setting: Setting, host: &Host) -> Result<Choice, Error> {
    choose_unless(setting, host, pause).await
}

/// Time between the last of so many refusals in a row and the next probe.
fn pause(refusals: u32) -> Duration {
    FIRST * 2_u32.pow(refusals.saturating_sub(1).min(DOUBLED))
}

/// Chooses by the answer of an earlier probe, unless that is a refusal that holds no longer.
async fn choose_unless(
    setting: Setting,
    host: &Host,
    refusal_holds: impl FnOnce(u32) -> Duration,
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

    async fn verdict(
        &self,
        setting: Setting,
        refusal_holds: impl FnOnce(u32) -> Duration,
    ) -> Verdict {
        let key = match Key::read(self).await {
            Ok(key) => key,
            Err(reason) => return Verdict::Failed { reason },
        };
        let mut refusals = 0;
        if let Some(answer) = cache::load(&self.cache_dir, &key).await {
            refusals = answer.refusals;
            let holds = match answer.verdict {
                Verdict::Executed { .. } => true,
                // An operator who requires KVM may just have repaired it.
                Verdict::Failed { .. } => {
                    setting == Setting::Auto && answer.age < refusal_holds(refusals)
                }
            };
            if holds {
                return answer.verdict;
            }
        }
        let verdict = probe::kvm(self).await;
        tracing::info!(?verdict, "accelerator probe completed");
        let refusals = match verdict {
            Verdict::Executed { .. } => 0,
            Verdict::Failed { .. } => refusals.saturating_add(1),
        };
        cache::store(&self.cache_dir, &key, &verdict, refusals).await;
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
