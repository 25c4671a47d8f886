//! Identifiers, annotations and the typed description of a pod's virtual machine.
//!
//! Invariant: a value of a type in this crate is valid; nothing downstream checks it again.
//! Failure: a value that is not valid never becomes one of these types; the error names the
//! annotation or the text and states what is allowed.
//!
//! # Example
//!
//! ```
//! use podspec::{is_url_image_name, parse_quantity, url_image_name};
//!
//! assert_eq!(parse_quantity("512Mi")?, 512 << 20);
//! assert!(is_url_image_name(&url_image_name("https://h.org/a.qcow2")));
//! # Ok::<(), podspec::QuantityError>(())
//! ```

mod annotations;
mod connection;
mod file_disks;
mod guest_data;
mod id;
mod image;
mod instance;
mod machine;
mod machine_type;
pub mod names;
mod paths;
mod presence;
mod quantity;
mod shares;
#[cfg(test)]
mod tests;
mod unknown;

pub use annotations::{AnnotationError, Annotations, Key};
pub use connection::{Connection, StationMac};
pub use file_disks::{FileDisk, FileFormat};
pub use guest_data::{
    ANSWER_FILES, AnswerFile, CloudData, Content, GuestData, GuestDataError, GuestFile, GuestName,
    Layout, NetworkData, NetworkVersion, Source, SourceKind, ignored_user_data,
};
pub use id::{ContainerId, Id, IdError, Kind, SandboxId, TAG, kind};
pub use image::{
    LONGEST_IMAGE_URL, UPLOADED_IMAGE, is_uploaded_image, is_url_image_name, url_image_name,
};
pub use instance::{Instance, Role, VmUid};
pub use machine::{
    CpuModel, Defaults, FastDeploy, Firmware, GuestAgent, Machine, Mib, PodResources, RootContent,
    Vcpus,
};
pub use machine_type::MachineType;
pub use paths::clean_path;
pub use presence::Presence;
pub use quantity::{QuantityError, parse_quantity};
pub use shares::Shares;
pub use unknown::{Unknown, unknown_annotations};
