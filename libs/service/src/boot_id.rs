//! The boot ID of the node.
//!
//! Invariant: the id has no white space around it.
//! Failure: the error of the read; what a program believes without an id is its own matter.

use std::io;
use std::path::Path;

/// The file in which the kernel shows it.
pub const KERNEL: &str = "/proc/sys/kernel/random/boot_id";

/// Reads the id from the file that the settings name, [`KERNEL`] outside of tests. Blocks.
///
/// # Errors
///
/// When the file cannot be read, or is no text.
pub fn read(file: &Path) -> io::Result<String> {
    Ok(std::fs::read_to_string(file)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_gives_a_uuid() {
        assert_eq!(read(Path::new(KERNEL)).unwrap().len(), 36);
    }
}
