//! Whether the daemon has `vmlet-guest` to give to guests.
//!
//! Invariant: none; the look blocks.
//! Failure: a sentence that names the file.

use std::path::Path;

/// Why guests do not get the program by their seed images, if they do not.
pub(super) fn missing(program: &Path) -> Option<String> {
    let error = match std::fs::metadata(program) {
        Ok(found) if found.is_file() => return None,
        Ok(_) => "it is not a file".to_owned(),
        Err(error) => error.to_string(),
    };
    Some(format!("failed to find {}: {error}", program.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_is_the_program() {
        let scratch = tempfile::tempdir().unwrap();
        let program = scratch.path().join("vmlet-guest");
        let words = missing(&program).unwrap();
        assert!(words.contains("vmlet-guest: No such file"), "{words}");
        std::fs::create_dir(&program).unwrap();
        let words = missing(&program).unwrap();
        assert!(words.contains("it is not a file"), "{words}");
        std::fs::remove_dir(&program).unwrap();
        std::fs::write(&program, "x").unwrap();
        assert_eq!(missing(&program), None);
    }
}
