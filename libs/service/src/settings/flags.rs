//! The command line: one flag for each setting, and `--config`.
//!
//! Invariant: flags follow from the settings type, named like the key with dashes; values are
//! parsed by the layers.
//! Failure: clap's message for a flag that does not exist.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::marker::PhantomData;
use std::path::PathBuf;

use clap::{ArgAction, ArgMatches};

use super::Settings;
use super::schema::{Kind, settings};

/// Name of the argument for the file.
const FILE: &str = "config";

/// The settings `T` that the command line gives; for `#[command(flatten)]` in the arguments of
/// a program.
#[derive(Debug)]
pub struct Flags<T> {
    /// The configuration file, if one is named.
    pub(super) file: Option<PathBuf>,
    /// Texts by key; only a list has several.
    pub(super) texts: BTreeMap<String, Vec<OsString>>,
    of: PhantomData<fn() -> T>,
}

impl<T> Default for Flags<T> {
    fn default() -> Self {
        Self {
            file: None,
            texts: BTreeMap::new(),
            of: PhantomData,
        }
    }
}

/// The command `config`, which every program with settings has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Subcommand)]
pub enum ConfigCommand {
    /// Print the effective configuration as TOML, with the source of each value.
    Show,
}

impl<T: Settings> clap::Args for Flags<T> {
    fn augment_args(command: clap::Command) -> clap::Command {
        let file = clap::Arg::new(FILE)
            .long(FILE)
            .value_name("FILE")
            .env(format!("{}_CONFIG", T::PREFIX))
            .hide_env_values(true)
            .value_parser(clap::value_parser!(PathBuf))
            .help(format!(
                "Path to the configuration file [default: {}]",
                T::FILE
            ))
            .global(true);
        let flags = settings::<T>()
            .into_iter()
            .filter(super::schema::Setting::is_text);
        flags.fold(command.arg(file), |command, setting| {
            let is_short = !setting.key.contains('.');
            let name = setting.name().to_uppercase();
            let action = match setting.kind {
                Kind::List => ArgAction::Append,
                _ => ArgAction::Set,
            };
            let flag = clap::Arg::new(setting.key)
                .long(setting.flag)
                .value_name(name)
                .value_parser(clap::value_parser!(OsString))
                .action(action)
                .help(format!(
                    "{} [env: {}]",
                    setting.doc.trim_end_matches('.'),
                    setting.variable
                ))
                .help_heading("Settings")
                .hide_short_help(!is_short)
                .global(true);
            command.arg(flag)
        })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl<T: Settings> clap::FromArgMatches for Flags<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        if let Some(file) = matches.get_one::<PathBuf>(FILE) {
            self.file = Some(file.clone());
        }
        for setting in settings::<T>()
            .into_iter()
            .filter(super::schema::Setting::is_text)
        {
            if let Some(texts) = matches.get_many::<OsString>(&setting.key) {
                self.texts.insert(setting.key, texts.cloned().collect());
            }
        }
        Ok(())
    }
}
