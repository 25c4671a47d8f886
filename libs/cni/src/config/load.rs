//! Finds the network of a configuration directory.
//!
//! Invariant: files count in the order of their names and the first usable one wins; nothing but
//! regular files of a bounded size is opened.
//! Failure: a broken file is passed over; when none is left, the error lists every file with its
//! reason.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::{ConfigError, MAX_PLUGINS, NetworkConfig, Plugin, Rejected, key};

const MAX_FILE: u64 = 1024 * 1024;

/// The first usable configuration in `dir`. Blocks.
pub(crate) fn load(dir: &Path) -> Result<NetworkConfig, ConfigError> {
    let mut rejected = Vec::new();
    for file in files(dir, &["conf", "conflist", "json"])? {
        match load_file(&file) {
            Ok(config) => return Ok(config),
            Err(error) => rejected.push(Rejected { file, error }),
        }
    }
    Err(ConfigError::None {
        dir: dir.into(),
        rejected,
    })
}

fn load_file(file: &Path) -> Result<NetworkConfig, ConfigError> {
    let mut config = NetworkConfig::parse_part(&read(file)?)?;
    if !config.inlined_only {
        // Specification 1.1: a folder with the network's name adds plugins to its chain.
        for extra in files(&file.with_file_name(&config.name), &["conf"])? {
            let value = serde_json::from_slice(&read(&extra)?).map_err(ConfigError::Json)?;
            config.plugins.push(Plugin::new(&value)?);
        }
    }
    if config.plugins.is_empty() {
        return Err(key("plugins", "no plugin"));
    }
    if config.plugins.len() > MAX_PLUGINS {
        return Err(key("plugins", "too many"));
    }
    config.file = Some(file.into());
    Ok(config)
}

/// Regular files (or links to such) of `dir` with one of the `extensions`, by name; none when there
/// is no such directory.
fn files(dir: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, ConfigError> {
    let failed = |source| ConfigError::Read {
        path: dir.into(),
        source,
    };
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let extension = path
            .extension()
            .and_then(|e| e.to_str())
            .unwrap_or_default();
        // Opening a pipe or device with a matching name would block.
        if extensions.contains(&extension) && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn read(path: &Path) -> Result<Vec<u8>, ConfigError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes))
        .map_err(|source| ConfigError::Read {
            path: path.into(),
            source,
        })?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(ConfigError::TooLarge {
            path: path.into(),
            limit: MAX_FILE,
        });
    }
    Ok(bytes)
}
