//! The command line.
//!
//! Invariant: every setting but tables has a flag, named like its key with dashes.
//! Failure: clap's message for what it cannot parse; values are checked with the other layers.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgMatches, Parser, Subcommand};

use super::schema::{Kind, SETTINGS};

/// Runs pods as virtual machines: a CRI runtime that uses libvirt.
#[derive(Debug, Parser)]
#[command(name = "vmlet", version)]
pub struct Args {
    /// Path to the configuration file [default: /etc/vmlet/vmlet.toml].
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// What to do instead of running the daemon.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Settings given as flags.
    #[command(flatten)]
    pub settings: Overrides,
}

/// Commands other than running the daemon.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Commands for the configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
}

/// Commands for the configuration.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum ConfigCommand {
    /// Print the effective configuration as TOML, with the source of each value.
    Show,
}

/// Settings given as flags: text by key.
#[derive(Debug, Clone, Default)]
pub struct Overrides(BTreeMap<&'static str, OsString>);

impl Overrides {
    pub(super) fn get(&self, key: &str) -> Option<OsString> {
        self.0.get(key).cloned()
    }
}

impl clap::Args for Overrides {
    fn augment_args(command: clap::Command) -> clap::Command {
        let flags = SETTINGS.iter().filter(|s| s.kind != Kind::Tables);
        flags.fold(command, |command, setting| {
            let flag = clap::Arg::new(setting.key)
                .long(setting.flag.as_str())
                .value_name(setting.name())
                .value_parser(clap::value_parser!(OsString))
                .help(setting.doc.as_str())
                .help_heading("Settings")
                .hide_short_help(!setting.section().is_empty())
                .global(true);
            command.arg(flag)
        })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for Overrides {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut overrides = Self::default();
        overrides.update_from_arg_matches(matches)?;
        Ok(overrides)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in SETTINGS.iter().filter(|s| s.kind != Kind::Tables) {
            if let Some(text) = matches.get_one::<OsString>(setting.key) {
                self.0.insert(setting.key, text.clone());
            }
        }
        Ok(())
    }
}
