//! The requests of a controller in each part of a test, as a table.
//!
//! Invariant: numbers are differences between two looks at the process and at its own counters.
//! Failure: a process that ended, or a page that is not served, is an error.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::controller::Controller;

/// A look.
#[derive(Debug)]
pub struct Mark {
    at: Instant,
    processor: f64,
    passes: f64,
    requests: BTreeMap<String, f64>,
}

/// What one part cost.
#[derive(Debug)]
pub struct Spent {
    what: String,
    took: Duration,
    /// Seconds of processor time.
    processor: f64,
    /// KiB in memory at the end.
    resident: u64,
    passes: f64,
    /// By method; empty methods are left out.
    requests: BTreeMap<String, f64>,
    /// Of each change of a user's, from queued to dispatched.
    waits: Vec<Duration>,
}

impl Controller {
    /// Begins a part.
    pub async fn mark(&self) -> Result<Mark> {
        let page = self.page("/metrics").await?;
        let mut requests = BTreeMap::new();
        let mut passes = 0.0;
        for line in page.lines() {
            let Some((series, value)) = line.rsplit_once(' ') else {
                continue;
            };
            let value = value.parse::<f64>().unwrap_or_default();
            if series.starts_with("vmlet_workqueue_dispatches_total{") {
                passes += value;
            } else if series.starts_with("vmlet_api_requests_total{") {
                let label = |name: &str| {
                    let (_, rest) = series.split_once(&format!("{name}=\""))?;
                    rest.split_once('"').map(|(value, _)| value)
                };
                let method = label("method").unwrap_or_default();
                let name = match label("code") {
                    Some("2xx") | None => method.to_owned(),
                    Some(code) => format!("{method} {code}"),
                };
                *requests.entry(name).or_insert(0.0) += value;
            }
        }
        Ok(Mark {
            at: Instant::now(),
            processor: self.usage()?.0,
            passes,
            requests,
        })
    }

    /// Ends a part.
    pub async fn spent(&self, what: &str, since: &Mark, waits: Vec<Duration>) -> Result<Spent> {
        let now = self.mark().await?;
        let mut requests = now.requests;
        for (name, before) in &since.requests {
            requests.entry(name.clone()).and_modify(|n| *n -= before);
        }
        requests.retain(|_, n| *n > 0.0);
        Ok(Spent {
            what: what.to_owned(),
            took: now.at - since.at,
            processor: now.processor - since.processor,
            resident: self.usage()?.1,
            passes: now.passes - since.passes,
            requests,
            waits,
        })
    }
}

impl Spent {
    /// How many requests of these methods were answered well.
    pub fn requests(&self, methods: &[&str]) -> f64 {
        let counted = methods.iter().filter_map(|name| self.requests.get(*name));
        counted.sum()
    }

    /// The heading of [`Self::row`].
    pub fn heading() -> String {
        "| part | took | passes | processor | share | memory | requests | a user's change waited, p50 (max) |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- |"
            .to_owned()
    }

    /// A row of a table.
    pub fn row(&self) -> String {
        let mut waits = self.waits.clone();
        waits.sort();
        let waited = match (waits.get(waits.len() / 2), waits.last()) {
            (Some(middle), Some(last)) => format!("{middle:.1?} ({last:.1?})"),
            _ => String::new(),
        };
        let requests = self.requests.iter();
        let requests: Vec<_> = requests.map(|(name, n)| format!("{name} {n}")).collect();
        format!(
            "| {} | {:.1?} | {} | {:.1} s | {:.0} % | {:.1} MiB | {} | {waited} |",
            self.what,
            self.took,
            self.passes,
            self.processor,
            100.0 * self.processor / self.took.as_secs_f64(),
            f64::from(u32::try_from(self.resident).unwrap_or(u32::MAX)) / 1024.0,
            requests.join(", "),
        )
    }
}
