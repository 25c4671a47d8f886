//! The credentials of a bucket, in a file as other programs have it:
//!
//! ```text
//! [default]
//! aws_access_key_id = …
//! aws_secret_access_key = …
//! aws_session_token = …        optional
//! ```
//!
//! Invariant: the file belongs to root or to the user of the daemon, and no other user reads it. What it has is in no error.
//! Failure: a sentence without the file's name.

use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::libc;
use nix::unistd::geteuid;
use rusty_s3::Credentials;

/// The longest file in bytes.
const LONGEST: u64 = 16 << 10;

/// The rights of a file that others have.
const OTHERS: u32 = 0o077;

/// Reads a file. Blocks.
pub(super) fn read(file: &Path) -> Result<Credentials, String> {
    let mut options = OpenOptions::new();
    // What is no plain file is not waited for.
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let opened = options.open(file).map_err(|e| e.to_string())?;
    let is = opened.metadata().map_err(|e| e.to_string())?;
    if !is.is_file() {
        return Err("it is no plain file".to_owned());
    }
    if is.mode() & OTHERS != 0 {
        let mode = is.mode() & 0o777;
        return Err(format!(
            "others than its owner have access to it (mode {mode:03o}): make it 600"
        ));
    }
    if ![0, geteuid().as_raw()].contains(&is.uid()) {
        return Err(format!("it belongs to user {}: give it to root", is.uid()));
    }
    let mut text = String::new();
    let read = opened.take(LONGEST + 1).read_to_string(&mut text);
    read.map_err(|e| e.to_string())?;
    if text.len() as u64 > LONGEST {
        return Err(format!("it has more than {LONGEST} bytes"));
    }
    parse(&text)
}

fn parse(text: &str) -> Result<Credentials, String> {
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with(['#', ';', '[']));
    let pairs: Vec<_> = lines
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.trim(), value.trim()))
        .collect();
    let find = |name: &str| {
        let mut found = pairs.iter().filter(|pair| pair.0 == name);
        match (found.next(), found.next()) {
            (Some((_, value)), None) if !value.is_empty() => Ok(Some((*value).to_owned())),
            (None, _) => Ok(None),
            _ => Err(format!("{name} is empty, or stands there twice")),
        }
    };
    let needed = |name: &str| find(name)?.ok_or_else(|| format!("{name} is missing"));
    let key = needed("aws_access_key_id")?;
    let secret = needed("aws_secret_access_key")?;
    Ok(match find("aws_session_token")? {
        Some(token) => Credentials::new_with_token(key, secret, token),
        None => Credentials::new(key, secret),
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const TEXT: &str =
        "# of the bucket\n[default]\naws_access_key_id = key\naws_secret_access_key=se=cret\n";

    #[test]
    fn a_file_has_one_pair_and_a_token_at_most() {
        let read = parse(TEXT).unwrap();
        assert_eq!(
            (read.key(), read.secret(), read.token()),
            ("key", "se=cret", None)
        );
        let read = parse(&format!("{TEXT}aws_session_token = t\n")).unwrap();
        assert_eq!(read.token(), Some("t"));
        for (text, words) in [
            ("", "aws_access_key_id is missing"),
            (
                "aws_access_key_id = key",
                "aws_secret_access_key is missing",
            ),
            (&format!("{TEXT}{TEXT}"), "twice"),
            (&TEXT.replace("se=cret", ""), "empty"),
        ] {
            let refused = parse(text).unwrap_err();
            assert!(refused.contains(words), "{refused}");
            assert!(!refused.contains("cret ="), "{refused}");
        }
    }

    #[test]
    fn a_file_that_others_can_read_is_not_used() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("credentials");
        fs::write(&file, TEXT).unwrap();
        let mode = |mode| fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        for refused in [0o640, 0o604, 0o620, 0o601] {
            mode(refused);
            let words = read(&file).unwrap_err();
            assert!(words.contains(&format!("mode {refused:03o}")), "{words}");
        }
        mode(0o400);
        assert_eq!(read(&file).unwrap().key(), "key");
        mode(0o600);
        fs::write(&file, "x".repeat(20_000)).unwrap();
        assert!(read(&file).unwrap_err().contains("more than"));
        let refused = read(scratch.path()).unwrap_err();
        assert!(refused.contains("no plain file"), "{refused}");
    }
}
