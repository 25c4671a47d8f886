//! A duration in a file: a number with a unit.
//!
//! Invariant: never negative; the text parses back to the same duration.
//! Failure: a sentence that states what is allowed.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::str::FromStr;
use std::time::Duration;

use jiff::SignedDuration;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A duration such as `500ms`, `30s` or `1h30m`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(try_from = "Written", into = "String")]
pub struct Timespan(Duration);

/// What a file has: a number without a unit gets an error of ours.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    String(String),
    Integer(i64),
    Float(f64),
}

impl Timespan {
    /// So many seconds.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// So many milliseconds.
    #[must_use]
    pub const fn from_millis(milliseconds: u64) -> Self {
        Self(Duration::from_millis(milliseconds))
    }

    /// The duration.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }

    /// Whether it is 0.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0.is_zero()
    }
}

impl FromStr for Timespan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "a duration such as 500ms, 30s or 1h30m is expected".to_owned();
        let parsed: SignedDuration = text.parse().map_err(|_| wrong())?;
        Duration::try_from(parsed).map(Self).map_err(|_| wrong())
    }
}

impl TryFrom<Written> for Timespan {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let number = match written {
            Written::String(text) => return text.parse(),
            Written::Integer(number) => number.to_string(),
            Written::Float(number) => number.to_string(),
        };
        Err(format!(
            "{number} has no unit: a duration such as \"500ms\", \"30s\" or \"1h30m\" is expected"
        ))
    }
}

impl From<Timespan> for String {
    fn from(timespan: Timespan) -> Self {
        timespan.to_string()
    }
}

impl Display for Timespan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match SignedDuration::try_from(self.0) {
            Ok(duration) => write!(f, "{}", format!("{duration:#}").replace(' ', "")),
            Err(_) => write!(f, "{}s", self.0.as_secs()),
        }
    }
}

impl JsonSchema for Timespan {
    fn schema_name() -> Cow<'static, str> {
        "Timespan".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}
