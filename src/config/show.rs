//! The effective configuration as a file.
//!
//! Invariant: what is printed is valid TOML and means the same configuration, except that credentials and
//! queries of translation URLs are left out: the output ends up in bug reports.
//! Failure: none.

use std::fmt::Write as _;

use super::layer::Effective;
use super::schema::{Kind, Setting};
use super::translation::{Pattern, Translation};

/// TOML with the origin of each value behind it.
pub fn show(effective: &Effective) -> String {
    let mut out = String::new();
    let mut section = "";
    for (key, text) in effective.config.texts() {
        let Some(setting) = Setting::named(key) else {
            continue;
        };
        if setting.section() != section {
            close(&mut out, section, effective);
            section = setting.section();
            // Writing to a string cannot fail.
            let _ = write!(out, "\n[{section}]\n");
        }
        let value = match setting.kind {
            Kind::Number => text,
            Kind::Text | Kind::Tables => toml::Value::String(text).to_string(),
        };
        let origin = effective.origins.of(key).describe(setting);
        let _ = writeln!(out, "{} = {value}  # {origin}", setting.name());
    }
    close(&mut out, section, effective);
    out
}

/// Array tables come after the plain values of their section.
fn close(out: &mut String, section: &str, effective: &Effective) {
    if section != "images" {
        return;
    }
    let key = "images.translations";
    let origin = Setting::named(key).map(|s| effective.origins.of(key).describe(s));
    for translation in &effective.config.images.translations {
        let Translation { pattern, .. } = translation;
        let (word, name) = match pattern {
            Pattern::Name(name) => ("name", name),
            Pattern::Prefix(prefix) => ("prefix", prefix),
        };
        let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
        let _ = write!(
            out,
            "\n[[{key}]]  # {}\n{word} = {}\nurl = {}\n",
            origin.as_deref().unwrap_or_default(),
            quoted(name),
            quoted(&translation.shown_url()),
        );
    }
}
