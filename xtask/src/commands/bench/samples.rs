//! The output of the measuring program, by part.
//!
//! Invariant: times are milliseconds and memory is KiB, as there.
//! Failure: a part or a number that is missing is named.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// All parts by name.
#[derive(Debug, Default, Serialize)]
pub(super) struct Samples(BTreeMap<String, Part>);

#[derive(Debug, Serialize, Deserialize)]
struct Part {
    samples: BTreeMap<String, Vec<f64>>,
    facts: BTreeMap<String, String>,
}

/// Numbers in ascending order, at least one.
#[derive(Debug, Clone)]
pub(super) struct Series(Vec<f64>);

impl Samples {
    /// Adds what a part printed.
    pub(super) fn add(&mut self, part: &str, printed: &str) -> Result<()> {
        let samples = serde_json::from_str(printed)
            .with_context(|| format!("the samples of {part}: {printed}"))?;
        self.0.insert(part.to_owned(), samples);
        Ok(())
    }

    /// The samples `name` of a part.
    pub(super) fn series(&self, part: &str, name: &str) -> Result<Series> {
        let numbers = self.0.get(part).and_then(|part| part.samples.get(name));
        Series::new(numbers.cloned().unwrap_or_default())
            .with_context(|| format!("no samples {name} of {part}"))
    }

    /// The last sample `name` of a part.
    pub(super) fn last(&self, part: &str, name: &str) -> Result<f64> {
        let numbers = self.0.get(part).and_then(|part| part.samples.get(name));
        let last = numbers.and_then(|numbers| numbers.last().copied());
        last.with_context(|| format!("no samples {name} of {part}"))
    }

    /// All samples `name` of a part, as they were taken.
    pub(super) fn all(&self, part: &str, name: &str) -> Result<&[f64]> {
        let numbers = self.0.get(part).and_then(|part| part.samples.get(name));
        let numbers = numbers.with_context(|| format!("no samples {name} of {part}"))?;
        Ok(numbers)
    }

    /// The names of a part's samples that begin with `start`, less that.
    pub(super) fn names(&self, part: &str, start: &str) -> Vec<String> {
        let samples = self.0.get(part).map(|part| part.samples.keys());
        let names = samples.into_iter().flatten();
        names
            .filter_map(|name| name.strip_prefix(start))
            .map(ToOwned::to_owned)
            .collect()
    }

    /// How much `name` grew from the first to the last sample of a part.
    pub(super) fn growth(&self, part: &str, name: &str) -> Result<f64> {
        let numbers = self.0.get(part).and_then(|part| part.samples.get(name));
        match numbers.map(Vec::as_slice) {
            Some([first, .., last]) => Ok(last - first),
            _ => bail!("no two samples {name} of {part}"),
        }
    }

    /// A fact of a part.
    pub(super) fn fact(&self, part: &str, name: &str) -> Option<&str> {
        let facts = &self.0.get(part)?.facts;
        facts.get(name).map(String::as_str)
    }

    /// Everything, for the file.
    pub(super) fn to_json(&self) -> Value {
        serde_json::json!(self)
    }
}

impl Series {
    /// `None` without numbers.
    pub(super) fn new(mut numbers: Vec<f64>) -> Option<Self> {
        numbers.sort_by(f64::total_cmp);
        (!numbers.is_empty()).then_some(Self(numbers))
    }

    /// The same numbers, each plus `more`.
    pub(super) fn plus(&self, more: f64) -> Self {
        Self(self.0.iter().map(|number| number + more).collect())
    }

    /// The same numbers in a unit of which `factor` make one.
    pub(super) fn times(&self, factor: f64) -> Self {
        Self(self.0.iter().map(|number| number * factor).collect())
    }

    /// How many.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The least number that at least `percent` of all do not exceed.
    pub(super) fn percentile(&self, percent: usize) -> f64 {
        let rank = (self.0.len() * percent).div_ceil(100);
        let index = rank.clamp(1, self.0.len()) - 1;
        self.0.get(index).copied().unwrap_or_default()
    }

    /// The median.
    pub(super) fn p50(&self) -> f64 {
        self.percentile(50)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_number_that_was_measured() {
        let series = Series::new(vec![4.0, 1.0, 3.0, 2.0]).unwrap();
        let of = |percent| series.percentile(percent);
        assert_eq!((of(0), of(50), of(75), of(100)), (1.0, 2.0, 3.0, 4.0));
        assert_eq!(series.plus(0.5).p50(), 2.5);
        let hundred = Series::new((1..=100).map(f64::from).collect()).unwrap();
        assert_eq!((hundred.percentile(99), hundred.len()), (99.0, 100));
        assert!(Series::new(Vec::new()).is_none());
    }

    #[test]
    fn what_a_part_printed_is_found_by_name() {
        let mut samples = Samples::default();
        let printed = r#"{"samples":{"rss":[5.0,9.0,7.0]},"facts":{"rows":"3"}}"#;
        samples.add("lists", printed).unwrap();
        assert_eq!(samples.series("lists", "rss").unwrap().p50(), 7.0);
        assert_eq!(samples.last("lists", "rss").unwrap(), 7.0);
        assert_eq!(samples.growth("lists", "rss").unwrap(), 2.0);
        assert_eq!(samples.fact("lists", "rows"), Some("3"));
        let missing = samples.series("lists", "time").unwrap_err().to_string();
        assert_eq!(missing, "no samples time of lists");
        assert!(samples.add("other", "oops").is_err());
    }
}
