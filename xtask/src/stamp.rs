//! Stores the inputs of a build product, so that it is built again only when they change.
//!
//! Invariant: a stamp is written after its product is complete, so a crash in between means one
//! more build, never a stale product.
//! Failure: an unreadable stamp counts as absent.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::oci;

/// The inputs of one product, as readable lines.
#[derive(Debug)]
pub(crate) struct Stamp {
    path: PathBuf,
    lines: Vec<String>,
}

impl Stamp {
    /// A stamp without inputs, kept at `path`.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            lines: Vec::new(),
        }
    }

    /// Adds a named value.
    pub(crate) fn value(mut self, name: &str, value: &str) -> Self {
        self.lines.push(format!("{name} {value}"));
        self
    }

    /// Adds the content of one file.
    pub(crate) fn file(mut self, path: &Path) -> Result<Self> {
        let digest = oci::sha256(path)?;
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        self.lines.push(format!("{name} {digest}"));
        Ok(self)
    }

    /// Adds every file of a folder, in the order of their names.
    pub(crate) fn folder(mut self, path: &Path) -> Result<Self> {
        let entries = fs::read_dir(path).with_context(|| format!("list {}", path.display()))?;
        let mut files = entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<Vec<_>, _>>()
            .with_context(|| format!("list {}", path.display()))?;
        files.sort();
        for file in files {
            self = self.file(&file)?;
        }
        Ok(self)
    }

    /// Whether all of `products` exist and were made from exactly these inputs.
    pub(crate) fn is_fresh(&self, products: &[PathBuf]) -> bool {
        products.iter().all(|product| product.exists())
            && fs::read_to_string(&self.path).is_ok_and(|text| text == self.text())
    }

    /// Records that the product is complete.
    pub(crate) fn write(&self) -> Result<()> {
        fs::write(&self.path, self.text()).with_context(|| format!("write {}", self.path.display()))
    }

    fn text(&self) -> String {
        self.lines.join("\n") + "\n"
    }
}

/// 64-bit FNV-1a: the same on every machine and with every compiler.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_is_fresh_only_while_its_inputs_stay_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let input = dir.path().join("input");
        let product = dir.path().join("product");
        fs::write(&input, "one").unwrap();
        let stamp = || {
            let stamp = Stamp::new(dir.path().join("stamp")).value("version", "1");
            stamp.file(&input).unwrap()
        };
        let products = [product.clone()];
        assert!(!stamp().is_fresh(&products), "nothing was made yet");

        fs::write(&product, "made").unwrap();
        stamp().write().unwrap();
        assert!(stamp().is_fresh(&products));

        fs::write(&input, "two").unwrap();
        assert!(!stamp().is_fresh(&products), "the input changed");
        stamp().write().unwrap();
        fs::remove_file(&product).unwrap();
        assert!(!stamp().is_fresh(&products), "the product is gone");
    }

    #[test]
    fn the_hash_is_the_published_one() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
