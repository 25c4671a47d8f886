//! One declaration per setting, from which everything else about it is made.
//!
//! Invariant: the typed configuration, its layer of options, the table of names and the texts for
//! `config show` list the same settings in the same order.
//! Failure: a default that does not parse is an error of loading, and of a test.

use std::sync::LazyLock;

/// What is known of a setting apart from its value.
#[derive(Debug)]
pub struct Setting {
    /// `section.key`, or the key alone at the top level.
    pub key: &'static str,
    /// The default as text.
    pub default: &'static str,
    /// How it is written in a file.
    pub kind: Kind,
    /// Its contract, in one line.
    pub doc: String,
    /// Environment variable; empty for tables.
    pub variable: String,
    /// Flag without the dashes; empty for tables.
    pub flag: String,
}

/// How a setting is written in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// As a string.
    Text,
    /// As a whole number.
    Number,
    /// As an array of tables; only a file can give it.
    Tables,
}

impl Setting {
    pub(super) fn new(key: &'static str, default: &'static str, kind: Kind, doc: &[&str]) -> Self {
        let named = |from: &[char], to| key.replace(from, to);
        let (variable, flag) = match kind {
            Kind::Tables => (String::new(), String::new()),
            Kind::Text | Kind::Number => (
                format!("VMLET_{}", named(&['.'], "_").to_uppercase()),
                named(&['.', '_'], "-"),
            ),
        };
        let lines: Vec<_> = doc.iter().map(|line| line.trim()).collect();
        Self {
            key,
            default,
            kind,
            doc: lines.join(" "),
            variable,
            flag,
        }
    }

    /// The setting with this key.
    pub(super) fn named(key: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.key == key)
    }

    /// The section it is in; empty at the top level.
    pub fn section(&self) -> &'static str {
        self.key.split_once('.').map_or("", |(section, _)| section)
    }

    /// Its name within the section.
    pub fn name(&self) -> &'static str {
        self.key.split_once('.').map_or(self.key, |(_, name)| name)
    }
}

/// All settings in the order of their declaration.
pub(super) static SETTINGS: LazyLock<Vec<Setting>> = LazyLock::new(super::table);

/// Declares settings. The first block is the top level of the file, each other one a section.
macro_rules! settings {
    (
        { $( $(#[doc = $top_doc:literal])+ $top:ident: $top_type:ty = $top_default:literal; )+ }
        $(
            $(#[doc = $section_doc:literal])+
            $section:ident: $Section:ident, $Partial:ident {
                $( $(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:literal; )+
                $( list { $(#[doc = $list_doc:literal])+ $list:ident: $item:ty; } )?
            }
        )+
    ) => {
        /// Everything that can be set, complete and valid.
        #[derive(Debug, Clone)]
        pub struct Config {
            $( $(#[doc = $top_doc])+ pub $top: $top_type, )+
            $( $(#[doc = $section_doc])+ pub $section: $Section, )+
        }

        /// What one layer says.
        #[derive(Debug, Default, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        struct PartialConfig {
            $( #[serde(deserialize_with = "value::scalar")] $top: Option<$top_type>, )+
            $( $section: $Partial, )+
        }

        $(
            $(#[doc = $section_doc])+
            #[derive(Debug, Clone)]
            pub struct $Section {
                $( $(#[doc = $doc])+ pub $name: $type, )+
                $( $(#[doc = $list_doc])+ pub $list: Vec<$item>, )?
            }

            #[derive(Debug, Default, serde::Deserialize)]
            #[serde(default, deny_unknown_fields)]
            struct $Partial {
                $( #[serde(deserialize_with = "value::scalar")] $name: Option<$type>, )+
                $( $list: Option<Vec<$item>>, )?
            }
        )+

        impl PartialConfig {
            /// A layer whose values are texts; `parse` is told the key of each.
            fn from_texts(texts: &layer::Texts<'_>) -> Result<Self> {
                Ok(Self {
                    $( $top: texts.parse(stringify!($top))?, )+
                    $( $section: $Partial {
                        $( $name: texts.parse(schema::key!($section, $name))?, )+
                        $( $list: None, )?
                    }, )+
                })
            }
        }

        impl Effective {
            /// For each setting the value of the last layer that has one.
            fn fold(layers: &[Layer]) -> Result<Self> {
                let mut origins = layer::Origins::default();
                let config = Config {
                    $( $top: origins.pick(stringify!($top), layers, |p| p.$top.as_ref())?, )+
                    $( $section: $Section {
                        $( $name: origins.pick(
                            schema::key!($section, $name),
                            layers,
                            |p| p.$section.$name.as_ref(),
                        )?, )+
                        $( $list: origins
                            .pick(schema::key!($section, $list), layers, |p| p.$section.$list.as_ref())
                            .unwrap_or_default(), )?
                    }, )+
                };
                Ok(Self { config, origins })
            }
        }

        impl Config {
            /// Key and text of every value that is not a table.
            fn texts(&self) -> Vec<(&'static str, String)> {
                vec![
                    $( (stringify!($top), self.$top.to_string()), )+
                    $( $( (schema::key!($section, $name), self.$section.$name.to_string()), )+ )+
                ]
            }
        }

        fn table() -> Vec<Setting> {
            use value::Value;
            vec![
                $( Setting::new(
                    stringify!($top), $top_default, <$top_type>::KIND, &[$($top_doc),+],
                ), )+
                $(
                    $( Setting::new(
                        schema::key!($section, $name), $default, <$type>::KIND, &[$($doc),+],
                    ), )+
                    $( Setting::new(
                        schema::key!($section, $list), "", Kind::Tables, &[$($list_doc),+],
                    ), )?
                )+
            ]
        }

        /// Names of the sections and what they are about.
        #[cfg(test)]
        const SECTIONS: &[(&str, &[&str])] = &[$( (stringify!($section), &[$($section_doc),+]), )+];
    };
}

macro_rules! key {
    ($section:ident, $name:ident) => {
        concat!(stringify!($section), ".", stringify!($name))
    };
}

pub(super) use {key, settings};
