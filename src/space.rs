//! Free space of the node's file systems, claimed before it is written.
//!
//! Invariant: when a claim is made, what all claims of its file system may still write is at most
//! what is free beside the reserve. Bytes that a claim's file has taken are no longer free, so they
//! count once.
//! Failure: [`Full`] with the numbers; nothing is claimed then.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::statvfs::statvfs;

/// What `stat` counts in.
const BLOCK: u64 = 512;

/// The claims of a node; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Space {
    /// Bytes of each file system that stay free.
    reserve: u64,
    claims: Arc<Mutex<Claims>>,
}

#[derive(Debug, Default)]
struct Claims {
    last: u64,
    all: HashMap<u64, Claimed>,
}

#[derive(Debug)]
struct Claimed {
    /// Number of the file system.
    device: u64,
    file: PathBuf,
    bytes: u64,
}

/// Bytes that a file may take, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Claim {
    space: Space,
    number: u64,
}

/// A claim that cannot be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Full {
    /// There is too little.
    #[error(
        "No space left on device: {needed} bytes are needed, {free} are free, of these {claimed} \
         are for files that are being written and {reserve} are reserved (images.reserve)"
    )]
    NoSpace {
        /// Bytes to be written.
        needed: u64,
        /// Bytes that are free.
        free: u64,
        /// Bytes that stay free.
        reserve: u64,
        /// Bytes that other files are going to take.
        claimed: u64,
    },
    /// The file system cannot be measured.
    #[error("measure its file system: {0}")]
    Measure(#[from] io::Error),
}

impl Full {
    /// Bytes that must be free for the claim; 0: unknown.
    pub(crate) const fn required(&self) -> u64 {
        match self {
            Self::NoSpace {
                needed,
                reserve,
                claimed,
                ..
            } => needed.saturating_add(*reserve).saturating_add(*claimed),
            Self::Measure(_) => 0,
        }
    }
}

/// A file system at one moment.
struct Measured {
    free: u64,
    /// What other claims may still write.
    claimed: u64,
}

impl Space {
    /// File systems of which `reserve` bytes stay free each.
    pub fn new(reserve: u64) -> Self {
        Self {
            reserve,
            claims: Arc::default(),
        }
    }

    /// Claims `most` bytes for a file, or as many as there are, but not less than `least`. Blocks.
    pub(crate) fn claim(&self, file: &Path, least: u64, most: u64) -> Result<Claim, Full> {
        let mut claims = self.claims();
        let there = taken(file)?;
        let device = fs::metadata(directory(file))?.dev();
        // Not even one byte would be an error of the writer, in other words.
        let needed = least.max(most.min(there.saturating_add(1)));
        let room = self.room(&claims, file, device, None, needed.saturating_sub(there))?;
        claims.last += 1;
        let number = claims.last;
        let claimed = Claimed {
            device,
            file: file.to_owned(),
            bytes: most.min(there.saturating_add(room)),
        };
        claims.all.insert(number, claimed);
        Ok(Claim {
            space: self.clone(),
            number,
        })
    }

    /// Whether the file system of `file` has more than its reserve, whatever is claimed. Blocks.
    pub(crate) fn check(&self, file: &Path) -> Result<u64, Full> {
        let free = free(file)?;
        match free.checked_sub(self.reserve) {
            Some(room) if room > 0 => Ok(room),
            _ => Err(self.full(1, &Measured { free, claimed: 0 })),
        }
    }

    /// Bytes that may be written beside reserve and claims, of which `needed` are needed.
    fn room(
        &self,
        claims: &Claims,
        file: &Path,
        device: u64,
        own: Option<u64>,
        needed: u64,
    ) -> Result<u64, Full> {
        let mut claimed = 0_u64;
        for (number, other) in &claims.all {
            if other.device == device && Some(*number) != own {
                let rest = other.bytes.saturating_sub(taken(&other.file)?);
                claimed = claimed.saturating_add(rest);
            }
        }
        // After the files: what is written meanwhile then counts twice, never not at all.
        let free = free(file)?;
        let left = free.saturating_sub(self.reserve).saturating_sub(claimed);
        if free < self.reserve || left < needed {
            return Err(self.full(needed, &Measured { free, claimed }));
        }
        Ok(left)
    }

    const fn full(&self, needed: u64, measured: &Measured) -> Full {
        Full::NoSpace {
            needed,
            free: measured.free,
            reserve: self.reserve,
            claimed: measured.claimed,
        }
    }

    fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claim {
    /// Bytes that the file may have.
    pub(crate) fn bytes(&self) -> u64 {
        let claims = self.space.claims();
        claims.all.get(&self.number).map_or(0, |own| own.bytes)
    }

    /// Makes the claim at least so large, and checks that the reserve is still free. Blocks.
    pub(crate) fn at_least(&self, bytes: u64) -> Result<(), Full> {
        let mut claims = self.space.claims();
        let Some(own) = claims.all.get(&self.number) else {
            return Ok(());
        };
        let (device, file, has) = (own.device, own.file.clone(), own.bytes);
        let needed = match bytes > has {
            true => bytes.saturating_sub(taken(&file)?),
            false => 0,
        };
        let number = Some(self.number);
        self.space.room(&claims, &file, device, number, needed)?;
        if let Some(own) = claims.all.get_mut(&self.number) {
            own.bytes = has.max(bytes);
        }
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.space.claims().all.remove(&self.number);
    }
}

fn directory(file: &Path) -> &Path {
    file.parent().unwrap_or(file)
}

/// Bytes that a file takes; 0 when there is none.
fn taken(file: &Path) -> io::Result<u64> {
    match fs::metadata(file) {
        Ok(is) => Ok(is.blocks().saturating_mul(BLOCK)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(e) => Err(e),
    }
}

/// Free bytes of the file system of a file.
fn free(file: &Path) -> io::Result<u64> {
    let is = statvfs(directory(file))?;
    Ok(is.blocks_available().saturating_mul(is.fragment_size()))
}

#[cfg(test)]
mod tests;
