//! The settings in force as a file, and the reference page of all settings.
//!
//! Invariant: what [`show`] prints is a valid file that means the same settings, except for what
//! their type hides when it is serialized; [`page`] follows from the settings type alone.
//! Failure: none; a value that cannot be serialized is left out.

use std::fmt::Write as _;

use toml::{Table, Value};

use super::Settings;
use super::layers::{Effective, get};
use super::schema::{Kind, Section, Setting, sections};

/// TOML with the source of each value in a comment.
#[must_use]
pub fn show<T: Settings>(effective: &Effective<T>) -> String {
    let table = Table::try_from(&effective.config).unwrap_or_default();
    let mut out = String::new();
    let mut tables = String::new();
    for section in sections::<T>()
        .into_iter()
        .filter(|section| !section.is_list)
    {
        let mut lines = String::new();
        for setting in &section.settings {
            let Some(value) = get(&table, &setting.key) else {
                continue;
            };
            let source = effective.source(&setting.key);
            match (setting.kind, value) {
                (Kind::Tables, value) => tables.push_str(&of_tables(&setting.key, value, source)),
                // Writing to a string cannot fail.
                (_, value) => drop(writeln!(lines, "{} = {value}  # {source}", setting.name())),
            }
        }
        if lines.is_empty() {
            continue;
        }
        if !section.name.is_empty() {
            let _ = write!(out, "\n[{}]\n", section.name);
        }
        out.push_str(&lines);
    }
    out + &tables
}

/// An array of tables, or a map; they come after the plain values.
fn of_tables(key: &str, value: &Value, source: &super::Source) -> String {
    let nested = key.rsplit('.').fold(value.clone(), |value, part| {
        Value::Table(Table::from_iter([(part.to_owned(), value)]))
    });
    match value {
        Value::Array(all) if all.is_empty() => String::new(),
        Value::Table(all) if all.is_empty() => String::new(),
        _ => {
            let text = toml::to_string(&nested).unwrap_or_default();
            format!("\n# {key}: {source}\n{text}")
        }
    }
}

/// The reference page of a program in Markdown: introduction, and one table of settings for each
/// section.
#[must_use]
pub fn page<T: Settings>() -> String {
    let program = T::PROGRAM;
    let file = T::FILE;
    let prefix = T::PREFIX;
    let file = if T::IS_FILE_REQUIRED {
        format!("a TOML file: the one that `--config FILE` names, or `{file}`, which must exist")
    } else {
        format!("a TOML file: the one that `--config FILE` names, or `{file}` if it exists")
    };
    let mut out = format!(
        "# Configuration of `{program}`\n\n\
         The settings come from four layers. A later layer replaces the values of an earlier one:\n\n\
         1. the defaults below;\n\
         2. {file};\n\
         3. environment variables, named like the key: `{prefix}_LOG_LEVEL` for `log.level`;\n\
         4. flags, named like the key: `--log-level`.\n\n\
         An unknown key, an unknown variable of this program, or a value that is not allowed ends the program with\n\
         exit code 64 and a message that names the line and column, the variable or the flag.\n\
         `{program} config show` prints the effective configuration and the source of each value.\n\n\
         A duration is a number with a unit: `500ms`, `30s`, `10m`, `1h30m`. A flag for a list may be repeated; a\n\
         variable separates the elements by commas. Only a file can contain tables.\n"
    );
    let minimal: Table = toml::from_str(T::MINIMAL).unwrap_or_default();
    let config = Value::Table(minimal.clone()).try_into::<T>().ok();
    let defaults = config.and_then(|config| Table::try_from(config).ok());
    for section in sections::<T>() {
        if !section.settings.is_empty() {
            out.push_str(&section_of_page(
                &section,
                &defaults.clone().unwrap_or_default(),
                &minimal,
            ));
        }
    }
    out
}

fn section_of_page(section: &Section, defaults: &Table, minimal: &Table) -> String {
    let mut out = match section.name.as_str() {
        "" => "\n## Top level\n\n".to_owned(),
        name if section.is_list => format!("\n## `[[{name}]]`\n\n{}\n\n", section.doc),
        name => format!("\n## `[{name}]`\n\n{}\n\n", section.doc),
    };
    out.push_str("| key | default | meaning |\n| --- | --- | --- |\n");
    for setting in &section.settings {
        let default = match (section.is_list, &setting.default) {
            (false, _) => default(setting, defaults, minimal),
            (true, _) if setting.is_required => "required".to_owned(),
            (true, Some(value)) if !value.is_null() => format!("`{value}`"),
            (true, _) => "not set".to_owned(),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "| `{}` | {default} | {} |",
            setting.name(),
            setting.doc
        );
    }
    out
}

fn default(setting: &Setting, defaults: &Table, minimal: &Table) -> String {
    if get(minimal, &setting.key).is_some() {
        return "required".to_owned();
    }
    match (setting.kind, get(defaults, &setting.key)) {
        (Kind::Tables, _) => "no tables".to_owned(),
        (_, None) => "not set".to_owned(),
        (_, Some(value)) => format!("`{value}`"),
    }
}

/// Compares the reference page of a program, followed by `rest`, with the file `path`; writes the
/// file if the variable `UPDATE_DOCS` is set. For a test of the program.
///
/// # Errors
///
/// A sentence that shows how to write the file.
pub fn check_page<T: Settings>(path: &std::path::Path, rest: &str) -> Result<(), String> {
    let page = page::<T>() + rest;
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &page).map_err(|e| e.to_string())?;
    }
    if std::fs::read_to_string(path).is_ok_and(|written| written == page) {
        Ok(())
    } else {
        Err(format!(
            "{} is not the page of the settings: run the tests of {} with UPDATE_DOCS=1",
            path.display(),
            T::PROGRAM
        ))
    }
}
