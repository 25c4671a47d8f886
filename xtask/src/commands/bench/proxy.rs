//! `bench proxy`: the latency that `vmlet-criproxy` adds to a call.
//!
//! Invariant: both ways are measured in one run and in turns, so that whatever else the machine
//! does hits both.
//! Failure: the part that could not be measured, with what the measuring program reported.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};

use super::samples::Samples;
use super::table::{Figure, Row};
use crate::commands::build::Build;
use crate::{run, workspace};

/// The measuring program; `tests/e2e` holds its source.
const PROGRAM: &str = "bench-proxy";

/// The list that other tables show.
const LIST: &str = "containers";

/// What the detour may add to a small call at the median, in microseconds.
const BUDGET: f64 = 150.0;

const MICROSECONDS: f64 = 1000.0;

/// Calls, how often by one client, and whether they are small.
const CALLS: [(&str, &str, u32, bool); 3] = [
    ("version", "Version", 4000, true),
    ("containers", "ListContainers", 4000, true),
    ("sandboxes", "ListPodSandbox", 100, false),
];

const CLIENTS: [u32; 2] = [1, 16];

/// Measures the proxy.
#[derive(Debug, clap::Args)]
pub(super) struct Proxy {
    /// Use the release builds without building them.
    #[arg(long)]
    no_build: bool,
    /// Socket of a real runtime to measure with, such as the one of containerd; its lists keep
    /// their length.
    #[arg(long)]
    endpoint: Option<PathBuf>,
}

impl Proxy {
    /// Runs the command.
    pub(super) fn run(&self) -> Result<ExitCode> {
        if !self.no_build {
            println!("bench: building");
            build()?;
        }
        let mut samples = Samples::default();
        for (call, _, count, _) in CALLS {
            for clients in CLIENTS {
                println!("bench: {call}, {clients} clients");
                let printed = self.measure(call, clients, count / clients)?;
                samples.add(&part(call, clients), &printed)?;
            }
        }
        super::publish("proxy", &samples, &rows(&samples)?)?;
        Ok(ExitCode::SUCCESS)
    }

    fn measure(&self, call: &str, clients: u32, count: u32) -> Result<String> {
        let folder = workspace::target().join("release");
        let mut command = run::root_command(folder.join(PROGRAM));
        command
            .arg("measure")
            .arg("--proxy")
            .arg(folder.join("vmlet-criproxy"));
        command.args([
            "--clients",
            &clients.to_string(),
            "--count",
            &count.max(20).to_string(),
        ]);
        if let Some(endpoint) = &self.endpoint {
            command.arg("--endpoint").arg(endpoint);
        }
        run::output(command.arg(call))
    }
}

fn build() -> Result<()> {
    Build::RELEASE.programs()?;
    super::build_program(PROGRAM)
}

/// Measures the small list by one client, with programs that are built; its row is [`list_row`].
pub(super) fn measure_list(samples: &mut Samples) -> Result<()> {
    let proxy = Proxy {
        no_build: true,
        endpoint: None,
    };
    println!("bench: {LIST} through the proxy");
    samples.add(&part(LIST, 1), &proxy.measure(LIST, 1, 4000)?)
}

/// What the detour adds to that list at the median.
pub(super) fn list_row(samples: &Samples) -> Result<Row> {
    let part = part(LIST, 1);
    let p50 = |name| Ok::<_, anyhow::Error>(samples.series(&part, name)?.p50());
    let entries = samples.fact(&part, "entries").unwrap_or("?");
    let what = format!("vmlet-criproxy adds to ListContainers of {entries}, at p50");
    let added = (p50("proxied")? - p50("direct")?) * MICROSECONDS;
    Ok(Row::one(what, "µs", added).within(Figure::P50, BUDGET, "wake-ups of three processes"))
}

fn part(call: &str, clients: u32) -> String {
    format!("{call}_{clients}")
}

fn rows(samples: &Samples) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (call, method, _, small) in CALLS {
        for clients in CLIENTS {
            let part = part(call, clients);
            let series =
                |name| Ok::<_, anyhow::Error>(samples.series(&part, name)?.times(MICROSECONDS));
            let direct = series("direct")?;
            let proxied = series("proxied")?;
            let entries = samples
                .fact(&part, "entries")
                .context("no number of entries")?;
            let size = if call == "version" {
                String::new()
            } else {
                format!(", {entries} entries")
            };
            let who = if clients == 1 {
                "1 client".to_owned()
            } else {
                format!("{clients} clients")
            };
            let more = |percent| proxied.percentile(percent) - direct.percentile(percent);
            let p50 = more(50);
            let p99 = more(99);
            rows.push(Row::many(
                format!("{method}{size}, {who}: direct"),
                "µs",
                direct,
            ));
            rows.push(Row::many("  through the proxy", "µs", proxied));
            let added = Row::one("  added at p50", "µs", p50);
            let why =
                "clients that never pause share the processors with everything that they call";
            let budgeted = small.then_some(BUDGET);
            rows.push(match budgeted {
                Some(most) => added.within(Figure::P50, most, if clients == 1 { "" } else { why }),
                None => added,
            });
            rows.push(Row::one("  added at p99", "µs", p99));
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_about_the_difference_of_the_medians() {
        let mut samples = Samples::default();
        for (call, ..) in CALLS {
            for clients in CLIENTS {
                let printed = r#"{"samples":{"direct":[0.1,0.2,0.3],"proxied":[0.3,0.36,9.0]},"facts":{"entries":"7"}}"#;
                samples.add(&part(call, clients), printed).unwrap();
            }
        }
        let rows = rows(&samples).unwrap();
        assert_eq!(rows.len(), CALLS.len() * CLIENTS.len() * 4);
        let added = rows[2].to_json();
        assert_eq!(added["verdict"], "over");
        let value = added["figures"]["value"].as_f64().unwrap();
        assert!((value - 160.0).abs() < 0.001, "{value}");
        let large = rows.last().unwrap().to_json();
        assert_eq!(large["verdict"], "", "a list of mebibytes has no budget");
    }
}
