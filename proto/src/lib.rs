//! The Container Runtime Interface, package `runtime.v1`: messages, client and server.
//!
//! Invariant: the wire format is exactly what `tests/fixtures/cri-fields.tsv` lists.
//! Failure: none at run time; a method that a server leaves out answers `Unimplemented`.

mod deadline;
mod names;
mod redact;

pub use deadline::timeout;
pub use names::{METHODS, code_name, method_name};

/// Messages, enumerations, clients and server traits of `runtime.v1`.
///
/// Timestamps are nanoseconds since the epoch. Methods that a server does not write answer
/// `Unimplemented`.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::pedantic,
    clippy::wildcard_imports,
    clippy::large_futures,
    reason = "generated code; its contracts are the comments of proto/api.proto"
)]
pub mod v1 {
    tonic::include_proto!("runtime.v1");
}

/// The encoded `FileDescriptorSet` of the package, as compiled.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptor.bin"));

/// The largest message, in bytes, that either side sends or accepts: 16 MiB.
///
/// kubelet and crictl receive up to this size, while tonic stops at 4 MiB unless configured
/// otherwise. Servers and clients set it for decoding and for encoding.
pub const MAX_MESSAGE: usize = 16 * 1024 * 1024;
