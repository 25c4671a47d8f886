//! The settings of a program, as its settings type describes them.
//!
//! Invariant: one [`Setting`] for each key that a value can be given for; keys are sorted,
//! top-level keys first.
//! Failure: none; a type whose schema is no object has no settings.

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::Value;

use super::Settings;

/// Form of a value in the file; decides how the text of a flag or variable becomes a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A string.
    Text,
    /// A number.
    Number,
    /// `true` or `false`.
    Boolean,
    /// A list of strings.
    List,
    /// Tables or a map, which only a file can contain.
    Tables,
}

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setting {
    /// Dotted key, such as `limits.progress`.
    pub(super) key: String,
    /// The doc comment of the field.
    pub(super) doc: String,
    /// Form of its value.
    pub(super) kind: Kind,
    /// Environment variable, such as `VMLET_AGENT_LIMITS_PROGRESS`.
    pub(super) variable: String,
    /// Flag without its dashes, such as `limits-progress`.
    pub(super) flag: String,
    /// The default that the schema has. Only for lists of tables: other defaults are those of the
    /// settings type.
    pub(super) default: Option<Value>,
    /// Whether its table must have it.
    pub(super) is_required: bool,
}

/// The table of a file that a setting is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Section {
    /// Dotted name, such as `limits`; empty for the top level.
    pub(super) name: String,
    /// The doc comment of the field.
    pub(super) doc: String,
    /// Whether a file may contain any number of such tables: `[[name]]`. Flags and variables
    /// cannot.
    pub(super) is_list: bool,
    /// Its settings, sorted by key.
    pub(super) settings: Vec<Setting>,
}

impl Setting {
    fn new(prefix: &str, key: &str, schema: &Value, kind: Kind) -> Self {
        let words = key.replace('.', "_");
        Self {
            key: key.to_owned(),
            doc: doc(schema),
            kind,
            variable: format!("{prefix}_{}", words.to_uppercase()),
            flag: words.replace('_', "-"),
            default: schema.get("default").cloned(),
            is_required: false,
        }
    }

    /// The key without its section.
    pub(super) fn name(&self) -> &str {
        self.key.rsplit('.').next().unwrap_or(&self.key)
    }

    /// Whether flags and variables can give its value.
    pub(super) fn is_text(&self) -> bool {
        self.kind != Kind::Tables
    }
}

/// All sections of a program: the top level, then the others by name.
pub(super) fn sections<T: Settings>() -> Vec<Section> {
    let schema = root::<T>();
    let mut all = Vec::new();
    collect(T::PREFIX, "", &schema, &mut all);
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// All settings of a program.
pub(super) fn settings<T: Settings>() -> Vec<Setting> {
    let sections = sections::<T>().into_iter();
    let sections = sections.filter(|section| !section.is_list);
    sections.flat_map(|section| section.settings).collect()
}

fn root<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|s| s.inline_subschemas = true);
    settings
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value()
}

fn collect(prefix: &str, name: &str, schema: &Value, all: &mut Vec<Section>) {
    let mut section = Section {
        name: name.to_owned(),
        doc: doc(schema),
        is_list: false,
        settings: Vec::new(),
    };
    let required = schema["required"].as_array();
    let properties = schema["properties"].as_object();
    for (field, schema) in properties.into_iter().flatten() {
        let key = match name {
            "" => field.clone(),
            _ => format!("{name}.{field}"),
        };
        match value_schema(schema) {
            section if section["properties"].is_object() => {
                let mut own = section.clone();
                own["description"] = schema["description"].clone();
                collect(prefix, &key, &own, all);
            }
            value => {
                if value["items"]["properties"].is_object() {
                    let mut of = all.len();
                    let mut own = value["items"].clone();
                    own["description"] = schema["description"].clone();
                    collect(prefix, &key, &own, all);
                    while let Some(table) = all.get_mut(of) {
                        table.is_list = true;
                        of += 1;
                    }
                }
                let mut setting = Setting::new(prefix, &key, schema, kind(value));
                setting.is_required =
                    required.is_some_and(|all| all.iter().any(|one| one == field));
                section.settings.push(setting);
            }
        }
    }
    all.push(section);
}

/// The schema of the value itself where the setting is optional.
fn value_schema(schema: &Value) -> &Value {
    let alternatives = schema["anyOf"].as_array();
    let some = alternatives.and_then(|all| all.iter().find(|one| one["type"] != "null"));
    some.unwrap_or(schema)
}

fn kind(schema: &Value) -> Kind {
    let is = |sort: &str| match &schema["type"] {
        Value::Array(sorts) => sorts.iter().any(|one| one == sort),
        one => one == sort,
    };
    match () {
        () if is("integer") || is("number") => Kind::Number,
        () if is("boolean") => Kind::Boolean,
        () if is("array") && schema["items"]["type"] == "string" => Kind::List,
        () if is("array") || is("object") => Kind::Tables,
        () => Kind::Text,
    }
}

/// The doc comment in one line.
fn doc(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
