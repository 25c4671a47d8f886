//! Defaults, then the file, then the environment, then flags.
//!
//! Invariant: a value of a later layer replaces that of an earlier one; what no layer gives has its
//! default. A variable with the program's prefix that names no setting is an error.
//! Failure: [`Error`] names the file with line and column, the variable or the flag, and what is
//! allowed.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::file::{self, Error};
use super::flags::Flags;
use super::schema::{Kind, Setting, settings};
use super::{Settings, refusal};

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The program.
    Default,
    /// The configuration file.
    File(PathBuf),
    /// This environment variable.
    Environment(String),
    /// This flag, with its dashes.
    Flag(String),
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Environment(variable) => write!(f, "environment {variable}"),
            Self::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

/// The settings in force, and the source of each value.
#[derive(Debug)]
pub struct Effective<T> {
    /// The settings.
    pub config: T,
    sources: BTreeMap<String, Source>,
}

impl<T> Effective<T> {
    /// The source of the value of `key`, such as `limits.progress`.
    #[must_use]
    pub fn source(&self, key: &str) -> &Source {
        self.sources.get(key).unwrap_or(&Source::Default)
    }
}

/// Reads all layers. `environment` is [`std::env::vars_os`] except in tests.
///
/// # Errors
///
/// [`Error`] for the first value that cannot be used.
pub fn layered<T: Settings>(
    flags: &Flags<T>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Effective<T>, Error> {
    let mut environment: BTreeMap<OsString, OsString> = environment.into_iter().collect();
    let settings = settings::<T>();
    refuse_unknown::<T>(&settings, environment.keys())?;
    let (path, mut table, mut config) = from_file::<T>(flags.file.as_deref())?;
    let mut sources = BTreeMap::new();
    for setting in &settings {
        if get(&table, &setting.key).is_some() {
            sources.insert(setting.key.clone(), Source::File(path.clone()));
        }
    }
    for setting in settings.iter().filter(|s| s.is_text()) {
        let variable = environment.remove(OsStr::new(&setting.variable));
        let flag = flags.texts.get(&setting.key);
        let given = [
            variable.map(|text| (Source::Environment(setting.variable.clone()), vec![text])),
            flag.map(|texts| (Source::Flag(format!("--{}", setting.flag)), texts.clone())),
        ];
        for (source, texts) in given.into_iter().flatten() {
            set(&mut table, &setting.key, value(setting, &source, texts)?);
            config = parse(&table).map_err(|reason| refused(&source, &table, setting, &reason))?;
            sources.insert(setting.key.clone(), source);
        }
    }
    config.check().map_err(Error::Check)?;
    Ok(Effective { config, sources })
}

/// The content of the file, as values and as settings.
fn from_file<T: Settings>(named: Option<&Path>) -> Result<(PathBuf, Table, T), Error> {
    let usual = (!T::IS_FILE_REQUIRED).then_some(T::FILE);
    let (table, config) = file::both(named.unwrap_or(Path::new(T::FILE)), named.is_none(), usual)?;
    Ok((named.unwrap_or(Path::new(T::FILE)).into(), table, config))
}

/// A variable with the program's prefix must be a setting. Kubernetes itself sets variables for
/// each Service of the namespace, such as `VMLET_AGENT_SERVICE_HOST`; those are ignored.
fn refuse_unknown<'a, T: Settings>(
    settings: &[Setting],
    variables: impl Iterator<Item = &'a OsString>,
) -> Result<(), Error> {
    let file = format!("{}_CONFIG", T::PREFIX);
    for variable in variables.filter_map(|name| name.to_str()) {
        let is_known = variable == file || settings.iter().any(|s| s.variable == variable);
        if T::owns(variable) && !is_known && !is_service_link(variable) {
            return Err(Error::Variable(variable.to_owned()));
        }
    }
    Ok(())
}

fn is_service_link(variable: &str) -> bool {
    let is_port = |rest: &str| rest.is_empty() || rest.starts_with('_');
    variable.ends_with("_SERVICE_HOST")
        || ["_SERVICE_PORT", "_PORT"].iter().any(|word| {
            variable
                .split_once(word)
                .is_some_and(|(_, rest)| is_port(rest))
        })
}

/// The text of a flag or variable as a value of the file.
fn value(setting: &Setting, source: &Source, texts: Vec<OsString>) -> Result<Value, Error> {
    let texts = texts.into_iter().map(|text| {
        text.into_string().map_err(|text| {
            let text = text.to_string_lossy();
            Error::Value(refusal(&source.to_string(), &text, "it is not valid UTF-8"))
        })
    });
    let mut texts = texts.collect::<Result<Vec<_>, _>>()?;
    if setting.kind == Kind::List {
        let all = texts.iter().flat_map(|text| text.split(','));
        let all = all
            .filter(|text| !text.is_empty())
            .map(|text| Value::String(text.to_owned()));
        return Ok(Value::Array(all.collect()));
    }
    let text = texts.pop().unwrap_or_default();
    let number = || {
        let integer = text.parse().map(Value::Integer).ok();
        integer.or_else(|| text.parse().map(Value::Float).ok())
    };
    let parsed = match setting.kind {
        Kind::Number => number(),
        Kind::Boolean => text.parse().map(Value::Boolean).ok(),
        Kind::Text | Kind::List | Kind::Tables => None,
    };
    // The settings type refuses a text in place of a number, and states what is allowed.
    Ok(parsed.unwrap_or(Value::String(text)))
}

fn parse<T: Settings>(table: &Table) -> Result<T, String> {
    Value::Table(table.clone())
        .try_into()
        .map_err(|e: toml::de::Error| file::reason(&e).1)
}

fn refused(source: &Source, table: &Table, setting: &Setting, reason: &str) -> Error {
    let value = get(table, &setting.key);
    let text = value.map(|value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    });
    Error::Value(refusal(
        &source.to_string(),
        &text.unwrap_or_default(),
        reason,
    ))
}

pub(super) fn get<'a>(table: &'a Table, key: &str) -> Option<&'a Value> {
    let mut parts = key.split('.');
    let first = table.get(parts.next()?)?;
    parts.try_fold(first, |value, part| value.get(part))
}

fn set(table: &mut Table, key: &str, value: Value) {
    match key.split_once('.') {
        None => drop(table.insert(key.to_owned(), value)),
        Some((section, rest)) => {
            let section = table
                .entry(section)
                .or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(section) = section {
                set(section, rest, value);
            }
        }
    }
}
