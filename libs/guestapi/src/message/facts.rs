//! What a guest reports about itself.
//!
//! Invariant: within 64 KiB a guest may repeat an empty part some ten thousand times, each of which
//! takes fifty times its bytes in memory. [`Facts::bounded`] has no more parts than a report may
//! have, no longer texts, and no memory beyond that.
//! Failure: none; what is beyond a bound is dropped.

use bytes::Bytes;

use crate::{FILE_SYSTEMS, INTERFACES, PUBLISHED, REPORT_TEXT};

/// What a guest reports about itself. Numbers that it does not know are 0.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Facts {
    /// Host name.
    #[prost(string, tag = "1")]
    pub host_name: String,
    /// `ID` of the operating system, such as `debian`.
    #[prost(string, tag = "2")]
    pub os_id: String,
    /// Its name for people.
    #[prost(string, tag = "3")]
    pub os_name: String,
    /// Its version.
    #[prost(string, tag = "4")]
    pub os_version: String,
    /// Release of its kernel.
    #[prost(string, tag = "5")]
    pub kernel: String,
    /// Nanoseconds since its boot.
    #[prost(uint64, tag = "6")]
    pub uptime: u64,
    /// CPU time that its processors were busy, in nanoseconds.
    #[prost(uint64, tag = "7")]
    pub cpu: u64,
    /// Bytes of memory.
    #[prost(uint64, tag = "8")]
    pub memory: u64,
    /// Bytes of memory that programs can get without swapping.
    #[prost(uint64, tag = "9")]
    pub memory_available: u64,
    /// Bytes of swap space.
    #[prost(uint64, tag = "10")]
    pub swap: u64,
    /// Bytes of swap space that are free.
    #[prost(uint64, tag = "11")]
    pub swap_free: u64,
    /// File systems on disks, at most [`FILE_SYSTEMS`].
    #[prost(message, repeated, tag = "12")]
    pub file_systems: Vec<FileSystem>,
    /// Network interfaces, at most [`INTERFACES`].
    #[prost(message, repeated, tag = "13")]
    pub interfaces: Vec<Interface>,
    /// The beginning of `/run/vmlet/guestinfo`, by which programs of the guest publish values; at
    /// most [`PUBLISHED`] bytes.
    #[prost(bytes = "bytes", tag = "14")]
    pub published: Bytes,
    /// The beginning of `/run/vmlet/not-mounted`, by which the boot script of the cloud-init disk
    /// names the shares that it could not mount and the files that it could not write; at most
    /// [`PUBLISHED`] bytes.
    #[prost(bytes = "bytes", tag = "15")]
    pub not_mounted: Bytes,
}

/// A mounted file system.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FileSystem {
    /// Where it is mounted.
    #[prost(string, tag = "1")]
    pub mount_point: String,
    /// Its device.
    #[prost(string, tag = "2")]
    pub device: String,
    /// Its type, such as `ext4`.
    #[prost(string, tag = "3")]
    pub kind: String,
    /// Bytes.
    #[prost(uint64, tag = "4")]
    pub size: u64,
    /// Bytes that are in use.
    #[prost(uint64, tag = "5")]
    pub used: u64,
    /// Inodes.
    #[prost(uint64, tag = "6")]
    pub inodes: u64,
    /// Inodes that are in use.
    #[prost(uint64, tag = "7")]
    pub inodes_used: u64,
}

/// A network interface.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Interface {
    /// Its name in the guest.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its hardware address, `52:54:00:12:34:56`.
    #[prost(string, tag = "2")]
    pub mac: String,
    /// Its addresses with the lengths of their prefixes, `10.1.0.5/24`.
    #[prost(string, repeated, tag = "3")]
    pub addresses: Vec<String>,
}

impl Facts {
    /// The same within the bounds of a report, to be kept: no capacity is left of what was more.
    #[must_use]
    pub fn bounded(self) -> Self {
        Self {
            host_name: text(self.host_name),
            os_id: text(self.os_id),
            os_name: text(self.os_name),
            os_version: text(self.os_version),
            kernel: text(self.kernel),
            file_systems: few(self.file_systems, FILE_SYSTEMS, FileSystem::bounded),
            interfaces: few(self.interfaces, INTERFACES, Interface::bounded),
            published: beginning(&self.published),
            not_mounted: beginning(&self.not_mounted),
            ..self
        }
    }
}

impl FileSystem {
    fn bounded(self) -> Self {
        Self {
            mount_point: text(self.mount_point),
            device: text(self.device),
            kind: text(self.kind),
            ..self
        }
    }
}

impl Interface {
    fn bounded(self) -> Self {
        Self {
            name: text(self.name),
            mac: text(self.mac),
            addresses: few(self.addresses, INTERFACES, text),
        }
    }
}

/// The first of them, in a list of its own: a collected iterator may keep the memory of all.
pub(super) fn few<T>(all: Vec<T>, most: usize, bounded: impl Fn(T) -> T) -> Vec<T> {
    let mut few = Vec::with_capacity(all.len().min(most));
    few.extend(all.into_iter().take(most).map(bounded));
    few
}

/// The beginning of a text.
pub(super) fn text(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(REPORT_TEXT));
    text.shrink_to_fit();
    text
}

/// The beginning of a file, apart from the frame that it came in, which would stay in memory with it.
fn beginning(file: &[u8]) -> Bytes {
    Bytes::copy_from_slice(&file[..file.len().min(PUBLISHED)])
}

#[cfg(test)]
mod tests;
