//! Reading, overriding and checking.
//!
//! Invariant: only a file that somebody named must exist.
//! Failure: the path with line and column, or the contradiction.

use service::settings;

use super::{Args, Config, Contradiction, DEFAULT_FILE};

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read or is not valid.
    #[error(transparent)]
    File(#[from] settings::Error),
    /// Settings contradict each other or are out of range.
    #[error(transparent)]
    Contradiction(#[from] Contradiction),
}

/// The settings in force.
///
/// # Errors
///
/// [`Error`] for whatever makes them unusable.
pub fn load(args: Args) -> Result<Config, Error> {
    let mut config: Config = settings::load(args.config.as_deref(), DEFAULT_FILE)?;
    args.overrides.apply(&mut config);
    config.check()?;
    Ok(config)
}
