//! Disks that the image server of the stack serves.
//!
//! Invariant: each disk has a boot signature and content of its own that no compression shortens;
//! with this value its files are removed.
//! Failure: the file that cannot be written.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use e2e::bench::{Stack, text};

/// Bytes that are written at once.
const CHUNK: usize = 1 << 20;
/// Where a disk says that it boots.
const SIGNATURE: usize = 510;

/// The folder of these disks, and its address.
#[derive(Debug)]
pub(crate) struct Files {
    folder: PathBuf,
    server: String,
}

impl Files {
    /// The folder of a stack whose image server has another image at `url`.
    pub(crate) fn for_server(stack: &Stack, url: &str) -> Result<Self> {
        let server = url
            .strip_prefix("http://")
            .and_then(|url| url.split('/').next())
            .with_context(|| format!("no server in {url}"))?;
        let folder = stack.path("served");
        fs::create_dir_all(&folder)?;
        Ok(Self {
            folder,
            server: server.to_owned(),
        })
    }

    /// The path of a file.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The name of the image that a file is.
    pub(crate) fn image(&self, name: &str) -> String {
        format!("{}/{name}:latest", self.server)
    }

    /// The address of a file.
    pub(crate) fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.server)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // What is left goes with the stack.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Writes a raw disk of `content` bytes.
pub(crate) fn write(path: &Path, content: usize) -> Result<()> {
    let mut file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    let mut random = fastrand::Rng::new();
    let mut written = 0;
    while written < content {
        let mut chunk = vec![0; CHUNK.min(content - written)];
        random.fill(&mut chunk);
        if written == 0 {
            let signature = chunk.get_mut(SIGNATURE..SIGNATURE + 2);
            signature
                .context("too small")?
                .copy_from_slice(&[0x55, 0xaa]);
        }
        file.write_all(&chunk)?;
        written += chunk.len();
    }
    Ok(())
}

/// Runs a command; what it prints.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let messages = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {messages}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Writes a qcow2 disk of `size` bytes with `content` bytes in it.
pub(crate) fn write_qcow2(path: &Path, content: usize, size: u64) -> Result<()> {
    let raw = path.with_extension("raw");
    write(&raw, content)?;
    File::options().write(true).open(&raw)?.set_len(size)?;
    let mut convert = Command::new("qemu-img");
    convert.args(["convert", "-f", "raw", "-O", "qcow2"]);
    run(convert.args([text(&raw)?, text(path)?]))?;
    fs::remove_file(&raw)?;
    Ok(())
}
