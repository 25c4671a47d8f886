//! The archives of chart and manifests: tar packed by gzip, which Helm takes as a chart.
//!
//! Invariant: the same files, folder and time give the same bytes on every machine: entries are root's, in the
//! order of their paths, and the packer is one of this program.
//! Failure: names the file that cannot be written.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};

use crate::oci::Tree;
use crate::text_files::TextFiles;

/// Writes the files in a folder of the archive, all of which changed at this time (seconds since 1970).
pub(crate) fn write(files: &TextFiles, folder: &str, time: u64, to: &Path) -> Result<()> {
    pack(files, folder, time, to).with_context(|| format!("write {}", to.display()))
}

fn pack(files: &TextFiles, folder: &str, time: u64, to: &Path) -> Result<()> {
    let mut tree = Tree::new().at(time);
    for (path, text) in files {
        tree.bytes(Path::new(folder).join(path), 0o644, text.as_str())?;
    }
    // Neither a name nor a time in the header of gzip.
    let mut packed = GzBuilder::new().write(File::create(to)?, Compression::best());
    tree.write(&mut packed)?;
    packed.finish()?.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::run;

    #[test]
    fn an_archive_has_the_same_bytes_again_and_tar_finds_files_of_root() {
        let dir = tempfile::tempdir().unwrap();
        let files: TextFiles = [("b/values.yaml", "b: 1\n"), ("Chart.yaml", "a: 1\n")]
            .map(|(path, text)| (path.into(), text.to_owned()))
            .into();
        let [first, second] = ["1.tgz", "2.tgz"].map(|name| dir.path().join(name));
        write(&files, "vmlet", 1_795_867_200, &first).unwrap();
        write(&files, "vmlet", 1_795_867_200, &second).unwrap();
        assert_eq!(fs::read(&first).unwrap(), fs::read(&second).unwrap());
        let mut tar = run::command("tar");
        tar.args(["--list", "--verbose", "--gzip", "--file"])
            .env("TZ", "UTC");
        let listed = run::output(tar.arg(&first)).unwrap();
        let names: Vec<_> = listed.lines().map(|line| line.rsplit(' ').next()).collect();
        let expected = [
            "vmlet",
            "vmlet/Chart.yaml",
            "vmlet/b",
            "vmlet/b/values.yaml",
        ];
        assert_eq!(names, expected.map(Some));
        for line in listed.lines() {
            assert!(
                line.contains(" 0/0 ") && line.contains(" 2026-11-28 "),
                "{line}"
            );
        }
        write(&files, "vmlet", 0, &second).unwrap();
        assert_ne!(fs::read(&first).unwrap(), fs::read(&second).unwrap());
    }
}
