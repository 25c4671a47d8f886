//! The manifest of a package: checksums of its files.
//!
//! Invariant: a manifest that is there counts as a whole; a line that is no checksum makes it invalid.
//! Failure: [`ManifestError`].

use std::collections::BTreeMap;

use sha1::Sha1;
use sha2::{Digest as _, Sha256, Sha512};

use super::shown;

/// Most lines.
const LINES: usize = 1000;

/// Why a manifest, or a file that it lists, is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum ManifestError {
    #[error("line {0} of the manifest is no checksum of a file by SHA1, SHA256 or SHA512")]
    Line(usize),
    #[error("the manifest lists {0:?} twice")]
    Twice(String),
    #[error("the manifest has more than {LINES} lines")]
    Many,
    #[error("the manifest does not list {0:?}, so that its content cannot be checked")]
    Unlisted(String),
    #[error(
        "the checksum of {0:?} is not the one in the manifest: the package is damaged, or was changed"
    )]
    Differs(String),
}

/// How a file was summed up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    Sha1,
    Sha256,
    Sha512,
}

/// What a file must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Checksum {
    algorithm: Algorithm,
    digits: String,
}

/// The checksums by names of files.
#[derive(Debug)]
pub(super) struct Manifest(BTreeMap<String, Checksum>);

/// Sums up a file that is read piece by piece.
#[derive(Debug)]
pub(super) enum Sum {
    Sha1(Sha1),
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Manifest {
    pub(super) fn parse(text: &str) -> Result<Self, ManifestError> {
        let mut all = BTreeMap::new();
        for (number, line) in text.lines().enumerate() {
            if number >= LINES {
                return Err(ManifestError::Many);
            }
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            let read = read_line(line);
            let (name, checksum) = read.ok_or(ManifestError::Line(number + 1))?;
            if all.insert(name.clone(), checksum).is_some() {
                return Err(ManifestError::Twice(shown(&name)));
            }
        }
        Ok(Self(all))
    }

    /// What the file of this name must have.
    pub(super) fn checksum(&self, name: &str) -> Result<&Checksum, ManifestError> {
        let found = self.0.get(name);
        found.ok_or_else(|| ManifestError::Unlisted(shown(name)))
    }
}

/// Such as `SHA256(web-disk1.vmdk)= 9f86d0…`; VirtualBox has spaces in other places.
fn read_line(line: &str) -> Option<(String, Checksum)> {
    let (algorithm, rest) = line.split_once('(')?;
    let (name, digits) = rest.rsplit_once(')')?;
    let digits = digits.trim_start().strip_prefix('=')?.trim();
    let algorithm = match algorithm.trim() {
        "SHA1" => Algorithm::Sha1,
        "SHA256" => Algorithm::Sha256,
        "SHA512" => Algorithm::Sha512,
        _ => return None,
    };
    let length = match algorithm {
        Algorithm::Sha1 => 40,
        Algorithm::Sha256 => 64,
        Algorithm::Sha512 => 128,
    };
    let is_complete = digits.len() == length && digits.bytes().all(|b| b.is_ascii_hexdigit());
    let checksum = Checksum {
        algorithm,
        digits: digits.to_ascii_lowercase(),
    };
    is_complete.then(|| (name.to_owned(), checksum))
}

impl Checksum {
    /// Begins to sum up a file.
    pub(super) fn begin(&self) -> Sum {
        match self.algorithm {
            Algorithm::Sha1 => Sum::Sha1(Sha1::new()),
            Algorithm::Sha256 => Sum::Sha256(Sha256::new()),
            Algorithm::Sha512 => Sum::Sha512(Sha512::new()),
        }
    }

    /// Compares the sum of the file of this name.
    pub(super) fn compare(&self, name: &str, sum: Sum) -> Result<(), ManifestError> {
        if sum.digits() == self.digits {
            return Ok(());
        }
        Err(ManifestError::Differs(shown(name)))
    }

    /// Compares a file that is in memory.
    pub(super) fn check(&self, name: &str, content: &[u8]) -> Result<(), ManifestError> {
        let mut sum = self.begin();
        sum.update(content);
        self.compare(name, sum)
    }
}

impl Sum {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha1(sum) => sum.update(bytes),
            Self::Sha256(sum) => sum.update(bytes),
            Self::Sha512(sum) => sum.update(bytes),
        }
    }

    fn digits(self) -> String {
        match self {
            Self::Sha1(sum) => hexadecimal(&sum.finalize()),
            Self::Sha256(sum) => hexadecimal(&sum.finalize()),
            Self::Sha512(sum) => hexadecimal(&sum.finalize()),
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of `abc`.
    const SHA1: &str = "a9993e364706816aba3e25717850c26c9cd0d89d";
    const SHA256: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn files_are_compared_with_their_checksums() {
        let text = format!(
            "SHA256(a (1).ovf)= {}\r\nSHA1 (b.vmdk) = {SHA1}\n\n",
            SHA256.to_uppercase()
        );
        let manifest = Manifest::parse(&text).unwrap();
        for name in ["a (1).ovf", "b.vmdk"] {
            let checksum = manifest.checksum(name).unwrap();
            checksum.check(name, b"abc").unwrap();
            let differs = checksum.check(name, b"abd").unwrap_err().to_string();
            assert!(differs.contains("damaged, or was changed"), "{differs}");
        }
        let unlisted = manifest.checksum("c").unwrap_err().to_string();
        assert!(unlisted.contains("does not list"), "{unlisted}");
        let long = "SHA512(a)= ".to_owned() + &"0a".repeat(64);
        let manifest = Manifest::parse(&long).unwrap();
        assert!(manifest.checksum("a").unwrap().check("a", b"abc").is_err());
    }

    #[test]
    fn a_line_that_is_no_checksum_makes_the_manifest_invalid() {
        for line in [
            "MD5(a)= 900150983cd24fb0d6963f7d28e17f72".to_owned(),
            format!("SHA256(a)= {SHA1}"),
            format!("SHA1(a)= {}", "g".repeat(40)),
            format!("SHA1 {SHA1}"),
            format!("SHA1(a) {SHA1}"),
        ] {
            let refused = Manifest::parse(&format!("\n{line}\n")).unwrap_err();
            assert!(
                matches!(refused, ManifestError::Line(2)),
                "{line}: {refused}"
            );
        }
        let twice = format!("SHA1(a)= {SHA1}\nSHA1(a)= {SHA1}");
        assert!(matches!(
            Manifest::parse(&twice),
            Err(ManifestError::Twice(_))
        ));
        assert!(Manifest::parse(&"\n".repeat(LINES + 1)).is_err());
    }
}
