//! What the boot script of a guest could not mount or write: a path in each line of a small file.
//!
//! Invariant: at most [`MOST`] paths, each from a line of a file of at most [`READ`] bytes. They are
//! compared with those of the pod, and never shown.
//! Failure: what is no text has no paths.

/// Where the boot script names them.
pub(super) const FILE: &str = "/run/vmlet/not-mounted";
/// What is read of it.
pub(super) const READ: usize = 4096;
/// Most paths; those of shares, of which a machine has no more, come first.
const MOST: usize = 16;

/// The paths.
pub(super) fn paths(file: &[u8]) -> Vec<String> {
    let file = file.get(..READ).unwrap_or(file);
    let text = String::from_utf8_lossy(file);
    let lines = text.lines().filter(|line| line.starts_with('/'));
    lines.take(MOST).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_path_and_there_are_few() {
        assert_eq!(paths(b"/etc/motd\nnone\n\n/a b\n"), ["/etc/motd", "/a b"]);
        assert_eq!(paths(&b"/x\n".repeat(100)).len(), MOST);
        assert!(paths(b"\xff\n").is_empty());
        assert_eq!(
            paths(&[b"/".as_slice(), &[b'x'; 9000]].concat())[0].len(),
            READ
        );
    }
}
