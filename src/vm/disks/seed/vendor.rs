//! What cloud-init gets beside the pod's data: vendor data, and what they run at each boot.
//!
//! Invariant: lists of the pod's user data, such as `runcmd` and `write_files`, are complete:
//! vendor data have none, which cloud-init would drop or put in their place.
//! Failure: none here; in the guest a file that cannot be written is named on the console, and in a
//! file that the guest's agent reports.

use std::fmt::Write as _;

use podspec::{GuestFile, Layout};

use super::links;
use super::volume::label;

/// Where the files of the boot are on the volume.
pub(super) const FOLDER: &str = "vmlet";
/// What is run at each boot.
pub(super) const BOOT: &[u8] = include_bytes!("boot.sh");
/// What the boot runs where the agent is on the volume.
pub(super) const INSTALL: &[u8] = include_bytes!("install-agent.sh");

const BOUNDARY: &str = "vmlet-vendor-data";
/// A machine keeps its disk and its identity when its pod, and with it the network, changes.
const CONFIG: &str =
    "#cloud-config\n{\"updates\": {\"network\": {\"when\": [\"boot-new-instance\", \"boot\"]}}}\n";

/// The vendor data: a setting, and a hook of each boot.
pub(super) fn vendor_data(layout: Layout) -> String {
    let hook = include_str!("hook.sh").replace("LABEL_OF_VOLUME", label(layout));
    let mut text =
        format!("Content-Type: multipart/mixed; boundary=\"{BOUNDARY}\"\nMIME-Version: 1.0\n\n");
    for (kind, part) in [("cloud-config", CONFIG), ("cloud-boothook", hook.as_str())] {
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "--{BOUNDARY}\nContent-Type: text/{kind}; charset=\"us-ascii\"\nMIME-Version: 1.0\n\n{part}\n"
        );
    }
    text + "--" + BOUNDARY + "--\n"
}

/// The commands that put files in their places.
pub(super) fn puts(files: &[GuestFile]) -> String {
    let mut text = String::new();
    for (number, file) in files.iter().enumerate() {
        let GuestFile { path, mode, .. } = file;
        let _ = writeln!(text, "put {number} {mode:04o} {}", quoted(path));
        if path == links::PATH {
            let _ = writeln!(text, "sh \"$seed/{FOLDER}/files/{number}\"");
        }
    }
    text
}

/// A word of a POSIX shell that stands for exactly this text.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
