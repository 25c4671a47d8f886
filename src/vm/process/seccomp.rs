//! Seccomp profiles of processes, as filters for the kernel of the guest.
//!
//! The library libseccomp, which runc uses, too, compiles them on the node: the guest needs nothing but its
//! kernel. A profile of the node is a file in the format of the OCI runtime specification
//! (`linux.seccomp`).
//!
//! Invariant: a profile is applied as a whole or refused; of its system calls those are left out that
//! libseccomp does not know, as in runc.
//! Failure: [`Error`], before anything of the container exists.

mod default;
mod format;

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use libseccomp::{ScmpAction, ScmpArch, ScmpArgCompare, ScmpFilterContext, ScmpSyscall};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::files;

/// Longest file of a profile in bytes.
const LONGEST: u64 = 1 << 20;
const EPERM: i32 = 1;

/// What a client requests of the system calls of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Profile {
    /// All are allowed.
    #[default]
    Unconfined,
    /// The profile of this runtime.
    RuntimeDefault,
    /// A file of the node.
    Localhost(PathBuf),
}

/// Why there is no filter.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] files::Error),
    /// It is too long.
    #[error("the seccomp profile {} has more than {LONGEST} bytes", .0.display())]
    TooLong(PathBuf),
    /// It has another format.
    #[error("the seccomp profile {} is not of the OCI runtime specification: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Where and how.
        source: serde_json::Error,
    },
    /// It requests what cannot be done.
    #[error("the seccomp profile {} cannot be applied: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What, and why not.
        reason: String,
    },
    /// libseccomp fails.
    #[error("compile the seccomp filter: {0}")]
    Compile(String),
}

impl Profile {
    /// The filter of a process with these capabilities, by their numbers; empty for none.
    pub(super) fn filter(&self, capabilities: &[u32]) -> Result<Bytes, Error> {
        match self {
            Self::Unconfined => Ok(Bytes::new()),
            Self::RuntimeDefault => default::filter(capabilities).map_err(Error::Compile),
            Self::Localhost(path) => {
                let path = path.clone();
                let format = |source| Error::Format {
                    path: path.clone(),
                    source,
                };
                let profile = serde_json::from_slice(&read(&path)?).map_err(format)?;
                format::filter(&profile).map_err(|reason| Error::Content { path, reason })
            }
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LONGEST + 1).read_to_end(&mut bytes));
    read.map_err(files::failed("read the seccomp profile", path))?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length <= LONGEST) {
        Ok(bytes)
    } else {
        Err(Error::TooLong(path.to_owned()))
    }
}

/// Rules of one profile.
struct Rules {
    context: ScmpFilterContext,
    default: ScmpAction,
}

impl Rules {
    /// None yet; `default` is the action of all other calls.
    fn new(default: ScmpAction) -> Result<Self, String> {
        let context = ScmpFilterContext::new(default).map_err(|e| e.to_string())?;
        Ok(Self { context, default })
    }

    fn add_arch(&mut self, arch: ScmpArch) -> Result<(), String> {
        let added = match self.context.is_arch_present(arch) {
            Ok(true) => Ok(()),
            _ => self.context.add_arch(arch).map(drop),
        };
        added.map_err(|e| e.to_string())
    }

    /// All conditions together; without any, always.
    fn add(
        &mut self,
        name: &str,
        action: ScmpAction,
        conditions: &[ScmpArgCompare],
    ) -> Result<(), String> {
        let Ok(call) = ScmpSyscall::from_name(name) else {
            return Ok(());
        };
        // Such a rule is none.
        if action == self.default {
            return Ok(());
        }
        let added = match conditions {
            [] => self.context.add_rule(action, call),
            all => self.context.add_rule_conditional(action, call, all),
        };
        added.map(drop).map_err(|e| format!("{name}: {e}"))
    }

    fn compile(self) -> Result<Bytes, String> {
        let compile = || -> io::Result<Bytes> {
            let file = memfd_create(c"seccomp", MFdFlags::MFD_CLOEXEC)?;
            let exported = self.context.export_bpf(&file);
            exported.map_err(io::Error::other)?;
            let mut file = File::from(file);
            file.rewind()?;
            let mut filter = Vec::new();
            file.read_to_end(&mut filter)?;
            Ok(filter.into())
        };
        compile().map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests;
