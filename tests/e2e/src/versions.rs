//! Programs of an earlier version in a stack, in place of those of this one.
//!
//! Invariant: files are replaced as packages do it: a program that runs keeps its own until it is restarted. What was
//! started is the program of the requested version, byte for byte.
//! Failure: the build of the earlier version, or the program that is missing, or another one.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::Stack;
use crate::stack::xtask;

/// The programs of two versions, for one stack.
#[derive(Debug)]
pub struct Versions<'a> {
    stack: &'a Stack,
    earlier: PathBuf,
    later: TempDir,
}

impl<'a> Versions<'a> {
    /// Builds the earlier version, unless it was, and keeps the programs that the stack has.
    pub fn new(stack: &'a Stack) -> Result<Self> {
        let built = xtask(&["earlier"])?;
        let (_, earlier) = built.trim().rsplit_once(" are in ").context("no folder")?;
        let later = tempfile::tempdir()?;
        for program in fs::read_dir(earlier)? {
            let name = program?.file_name();
            let program = stack.dir().join("bin").join(&name);
            if program.exists() {
                fs::copy(program, later.path().join(name))?;
            }
        }
        Ok(Self {
            stack,
            earlier: PathBuf::from(earlier),
            later,
        })
    }

    /// Puts files of the earlier version into the stack.
    pub fn install_earlier(&self, programs: &[&str]) -> Result<()> {
        self.install(&self.earlier, programs)
    }

    /// Puts files of this version into the stack.
    pub fn install_later(&self, programs: &[&str]) -> Result<()> {
        self.install(self.later.path(), programs)
    }

    /// Restarts programs of the earlier version, whose files the stack has.
    pub fn restart_earlier(&self, programs: &[&str]) -> Result<()> {
        self.restart(&self.earlier, programs)
    }

    /// Restarts programs of this version, whose files the stack has.
    pub fn restart_later(&self, programs: &[&str]) -> Result<()> {
        self.restart(self.later.path(), programs)
    }

    fn install(&self, from: &Path, programs: &[&str]) -> Result<()> {
        for name in programs {
            let place = self.stack.dir().join("bin").join(name);
            let part = place.with_extension("part");
            fs::copy(from.join(name), &part).with_context(|| format!("copy {name}"))?;
            fs::rename(part, place)?;
        }
        Ok(())
    }

    fn restart(&self, version: &Path, programs: &[&str]) -> Result<()> {
        for name in programs {
            self.stack.restart(name)?;
            let read = |folder: &Path| fs::read(folder.join(name));
            let earlier = read(&self.earlier)?;
            ensure!(earlier != read(self.later.path())?, "one {name} of both");
            let running = fs::read(format!("/proc/{}/exe", self.stack.pid(name)?))?;
            ensure!(running == read(version)?, "{name} is of another version");
        }
        Ok(())
    }
}
