//! Free space of the node's file systems, claimed before it is written.
//!
//! Invariant: when a claim is made, what all claims of its file system may still write is at most
//! what is free beside the reserve. Bytes that a claim's file has taken are no longer free, so they
//! count once. Nothing is asked of a file system while the claims are locked: one that hangs keeps
//! the thread that asks it, and no other.
//! Failure: [`Full`] with the numbers; nothing is claimed then.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::statvfs::statvfs;

pub mod ballast;

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
    /// Counts changes.
    version: u64,
    all: HashMap<u64, Claimed>,
}

#[derive(Debug, Clone)]
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
    /// The reserve, where the claim would fit without it; empty otherwise.
    pub(crate) fn because(&self) -> String {
        match self {
            Self::NoSpace {
                needed,
                free,
                reserve,
                claimed,
            } if *free >= needed.saturating_add(*claimed) => format!(
                ": {needed} bytes are needed and {free} are free, but images.reserve keeps {reserve} of \
                 them free"
            ),
            Self::NoSpace { .. } | Self::Measure(_) => String::new(),
        }
    }

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

/// Claims of one file system and what it said of them, without a lock in between.
struct Look {
    version: u64,
    device: u64,
    free: u64,
    /// Of each claim its bytes, and those that its file has taken.
    claims: HashMap<u64, (u64, u64)>,
}

/// Looks after which a file system whose claims change all the time is full.
const LOOKS: u8 = 8;

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
        let there = taken(file)?;
        // Not even one byte would be an error of the writer, in other words.
        let needed = least.max(most.min(there.saturating_add(1)));
        let number = self.with_room(
            file,
            None,
            needed.saturating_sub(there),
            |claims, look, room| {
                claims.last += 1;
                let claimed = Claimed {
                    device: look.device,
                    file: file.to_owned(),
                    bytes: most.min(there.saturating_add(room)),
                };
                claims.all.insert(claims.last, claimed);
                claims.last
            },
        )?;
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

    /// Calls `take` with the bytes that may be written beside reserve and other claims, if `needed`
    /// bytes may.
    fn with_room<T>(
        &self,
        file: &Path,
        own: Option<u64>,
        needed: u64,
        take: impl FnOnce(&mut Claims, &Look, u64) -> T,
    ) -> Result<T, Full> {
        let mut looks = 0;
        loop {
            looks += 1;
            let look = self.look(file)?;
            let mut claims = self.claims();
            let claimed = look.claimed(&claims, own);
            let left = look.free.saturating_sub(self.reserve);
            let left = left.saturating_sub(claimed);
            if look.free >= self.reserve && left >= needed {
                claims.version += 1;
                return Ok(take(&mut claims, &look, left));
            }
            // What changed meanwhile was counted at its largest: only a look without changes
            // refuses.
            if claims.version == look.version || looks >= LOOKS {
                let free = look.free;
                return Err(self.full(needed, &Measured { free, claimed }));
            }
        }
    }

    fn look(&self, file: &Path) -> Result<Look, Full> {
        let device = fs::metadata(directory(file))?.dev();
        let (version, alike) = {
            let claims = self.claims();
            let alike = claims.all.iter().filter(|(_, one)| one.device == device);
            let alike: Vec<_> = alike.map(|(number, one)| (*number, one.clone())).collect();
            (claims.version, alike)
        };
        let mut claims = HashMap::with_capacity(alike.len());
        for (number, one) in alike {
            claims.insert(number, (one.bytes, taken(&one.file)?));
        }
        Ok(Look {
            version,
            device,
            // After the files: what is written meanwhile then counts twice, never not at all.
            free: free(file)?,
            claims,
        })
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

impl Look {
    /// What claims other than `own` may still write: also those that ended since the look, whose
    /// bytes may have been taken after it, and those that began since, of which nothing was seen.
    fn claimed(&self, now: &Claims, own: Option<u64>) -> u64 {
        let alike = now.all.iter().filter(|(_, one)| one.device == self.device);
        let new = alike.map(|(number, one)| {
            let (before, taken) = self.claims.get(number).copied().unwrap_or_default();
            (*number, one.bytes.max(before).saturating_sub(taken))
        });
        let ended = self.claims.iter();
        let ended = ended.filter(|(number, _)| !now.all.contains_key(number));
        let ended = ended.map(|(number, (bytes, taken))| (*number, bytes.saturating_sub(*taken)));
        new.chain(ended)
            .filter(|(number, _)| Some(*number) != own)
            .fold(0, |sum, (_, bytes)| sum.saturating_add(bytes))
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
        let own = self.space.claims().all.get(&self.number).cloned();
        let Some(own) = own else { return Ok(()) };
        let needed = if bytes > own.bytes {
            bytes.saturating_sub(taken(&own.file)?)
        } else {
            0
        };
        let grow = |claims: &mut Claims, _: &Look, _: u64| {
            if let Some(own) = claims.all.get_mut(&self.number) {
                own.bytes = own.bytes.max(bytes);
            }
        };
        self.space
            .with_room(&own.file, Some(self.number), needed, grow)
    }

    /// Lets the file take up to `step` bytes more than it has, or as many as there are, `most` in
    /// all; an error when its claim is used up and nothing is left beside the reserve. Blocks.
    pub(crate) fn grow(&self, step: u64, most: u64) -> Result<(), Full> {
        let own = self.space.claims().all.get(&self.number).cloned();
        let Some(own) = own else { return Ok(()) };
        let there = taken(&own.file)?;
        let needed = u64::from(there >= own.bytes && there < most);
        let grow = |claims: &mut Claims, _: &Look, room: u64| {
            if let Some(own) = claims.all.get_mut(&self.number) {
                let bytes = there.saturating_add(step.min(room)).min(most);
                own.bytes = own.bytes.max(bytes);
            }
        };
        self.space
            .with_room(&own.file, Some(self.number), needed, grow)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claims = self.space.claims();
        claims.version += 1;
        claims.all.remove(&self.number);
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
