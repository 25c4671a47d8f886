//! Content with its digest, kept in a file until the archive is complete.
//!
//! Invariant: digest and size are those of the bytes in the file.
//! Failure: an error names the file.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// One content-addressed file of an image.
#[derive(Debug)]
pub(super) struct Blob {
    pub(super) file: PathBuf,
    /// 64 hexadecimal digits of SHA-256.
    pub(super) digest: String,
    /// In bytes.
    pub(super) size: u64,
}

impl Blob {
    /// Writes a blob to `file`.
    pub(super) fn write(
        file: &Path,
        content: impl FnOnce(&mut dyn Write) -> Result<()>,
    ) -> Result<Self> {
        let context = || format!("write {}", file.display());
        let mut out = Hashing {
            out: BufWriter::new(File::create(file).with_context(context)?),
            hash: Sha256::new(),
            size: 0,
        };
        content(&mut out).with_context(context)?;
        out.flush().with_context(context)?;
        Ok(Self {
            file: file.to_owned(),
            digest: hex(&out.hash.finalize()),
            size: out.size,
        })
    }

    /// Writes a JSON document to `file`.
    pub(super) fn json(file: &Path, document: &Value) -> Result<Self> {
        Self::write(file, |out| {
            serde_json::to_writer(out, document).context("encode JSON")
        })
    }

    /// The blob of a file that is there already.
    pub(super) fn from_file(file: &Path) -> Result<Self> {
        let context = || format!("read {}", file.display());
        let mut input = File::open(file).with_context(context)?;
        let mut out = Hashing {
            out: io::sink(),
            hash: Sha256::new(),
            size: 0,
        };
        io::copy(&mut input, &mut out).with_context(context)?;
        Ok(Self {
            file: file.to_owned(),
            digest: hex(&out.hash.finalize()),
            size: out.size,
        })
    }

    /// How other documents name the blob.
    pub(super) fn descriptor(&self, media_type: &str) -> Value {
        json!({
            "mediaType": media_type,
            "digest": format!("sha256:{}", self.digest),
            "size": self.size,
        })
    }
}

/// The digest of a file, 64 hexadecimal digits.
pub(crate) fn sha256(file: &Path) -> Result<String> {
    Blob::from_file(file).map(|blob| blob.digest)
}

/// Hashes and counts what passes through.
struct Hashing<W> {
    out: W,
    hash: Sha256,
    size: u64,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
