//! The record of a device.
//!
//! Invariant: plain values. Numbers hold for one boot of the kernel, as do the containers that have
//! the devices.
//! Failure: none here.

use std::fmt;
use std::str::FromStr;

use podspec::ContainerId;
use serde::{Deserialize, Serialize};

use crate::images::Image;
use crate::metadata::Record;

/// What the kernel calls a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Number {
    /// Which driver.
    pub major: u64,
    /// Which of its devices.
    pub minor: u64,
}

impl Number {
    /// Who the threads that work on it work for.
    pub(super) fn owner(self) -> String {
        format!("device {self}")
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.major, self.minor)
    }
}

impl FromStr for Number {
    type Err = &'static str;

    /// As it is displayed.
    fn from_str(text: &str) -> Result<Self, &'static str> {
        let wrong = "not two numbers with a hyphen between them";
        let parts = text.split_once('-').ok_or(wrong)?;
        let number = |part: &str| part.parse().map_err(|_| wrong);
        Ok(Self {
            major: number(parts.0)?,
            minor: number(parts.1)?,
        })
    }
}

/// The part of a device that is a guest's disk, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Where it begins.
    pub offset: u64,
    /// How long it is.
    pub size: u64,
}

/// A device that a container has, or that several containers read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The device.
    pub device: Number,
    /// Who has it, or the first who reads it.
    pub holder: ContainerId,
    /// Whether the holders may only read.
    #[serde(default)]
    pub read_only: bool,
    /// Who reads it besides the holder.
    #[serde(default)]
    pub readers: Vec<ContainerId>,
    /// The guest's part, once the device is prepared.
    pub extent: Option<Extent>,
}

impl Held {
    /// All holders.
    pub fn all(&self) -> impl Iterator<Item = &ContainerId> {
        std::iter::once(&self.holder).chain(&self.readers)
    }

    /// Whether the container has it.
    pub fn is_of(&self, container: &ContainerId) -> bool {
        self.all().any(|one| one == container)
    }

    /// Takes a container out; false when no other would be left.
    pub(super) fn leave(&mut self, container: &ContainerId) -> bool {
        let others: Vec<_> = self
            .all()
            .filter(|one| *one != container)
            .cloned()
            .collect();
        match others.split_first() {
            None => false,
            Some((first, rest)) => {
                self.holder = first.clone();
                self.readers = rest.to_vec();
                true
            }
        }
    }
}

impl Record for Held {
    type Key = Number;
    const TABLE: &'static str = "block_devices";

    fn key(&self) -> Number {
        self.device
    }
}

/// What a device is to hold before its guest boots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredContent {
    /// The image that is written to it; `None` takes the device as it is.
    pub image: Option<Image>,
    /// It belongs to a machine that outlives its pods: an image that was written once stays,
    /// whatever image is named.
    pub is_kept: bool,
    /// The image is written over the content of another one. Not over what is kept.
    pub replaces: bool,
}
