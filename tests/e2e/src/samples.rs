//! Measured numbers by name.
//!
//! Invariant: times are milliseconds, memory is KiB; in the order in which they were taken.
//! Failure: none.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

/// Numbers by name, and facts that explain them.
#[derive(Debug, Default)]
pub struct Samples {
    samples: BTreeMap<Cow<'static, str>, Vec<f64>>,
    facts: BTreeMap<&'static str, String>,
}

impl Samples {
    /// Adds a duration.
    pub fn time(&mut self, name: impl Into<Cow<'static, str>>, took: Duration) {
        self.number(name, took.as_secs_f64() * 1e3);
    }

    /// Adds a number.
    pub fn number(&mut self, name: impl Into<Cow<'static, str>>, value: f64) {
        self.samples.entry(name.into()).or_default().push(value);
    }

    /// Sets a fact.
    pub fn fact(&mut self, name: &'static str, value: String) {
        self.facts.insert(name, value);
    }

    /// `{"samples": {NAME: [NUMBER…]}, "facts": {NAME: TEXT}}` on one line.
    pub fn to_json(&self) -> String {
        json!({ "samples": self.samples, "facts": self.facts }).to_string()
    }
}
