//! Reading, overriding and checking.
//!
//! Invariant: only a file that somebody named must exist.
//! Failure: the path with line and column, or the contradiction.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{Args, Config, Contradiction, DEFAULT_FILE};

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("read configuration file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// The file is not valid: syntax, unknown key or bad value.
    #[error("configuration file {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Line, column and reason.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// Settings contradict each other or are out of range.
    #[error(transparent)]
    Contradiction(#[from] Contradiction),
}

/// The settings in force.
///
/// # Errors
///
/// [`Error`] for whatever makes them unusable.
pub fn load(args: &Args) -> Result<Config, Error> {
    let mut config = match &args.config {
        Some(path) => read(path)?,
        None => match read(Path::new(DEFAULT_FILE)) {
            Err(Error::Read { source, .. }) if source.kind() == ErrorKind::NotFound => {
                Config::default()
            }
            read => read?,
        },
    };
    args.overrides.apply(&mut config);
    config.check()?;
    Ok(config)
}

fn read(path: &Path) -> Result<Config, Error> {
    let text = std::fs::read_to_string(path).map_err(|source| Error::Read {
        path: path.into(),
        source,
    })?;
    toml::from_str(&text).map_err(|source| Error::File {
        path: path.into(),
        source: Box::new(source),
    })
}
