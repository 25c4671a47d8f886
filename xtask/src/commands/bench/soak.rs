//! `bench soak`: what programs hold after the lives of many pods.
//!
//! Invariant: numbers are only printed; what is left in the end is for `down`, which names it.
//! Failure: a pod that could not live, or what the stack leaked.

use std::process::ExitCode;

use anyhow::{Context, Result};

use super::samples::Samples;
use super::table::Row;
use super::{cri, plan, publish};
use crate::stack::Session;

const PART: &str = "soak";
const PROGRAMS: [&str; 4] = ["vmlet", "vmlet-tapmanager", "libvirtd", "vmlet-criproxy"];
/// Kinds of numbers: names of samples, titles, units, how many of theirs make one.
const KINDS: [(&str, &str, &str, f64); 3] = [
    ("rss", "VmRSS", "MiB", 1024.0),
    ("fds", "descriptors", "", 1.0),
    ("threads", "threads", "", 1.0),
];

/// Lets many pods live and measures what programs hold meanwhile.
#[derive(Debug, clap::Args)]
pub(super) struct Soak {
    /// Use the release builds and images without building them.
    #[arg(long)]
    no_build: bool,
    /// Number of pods.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..))]
    pods: u32,
}

impl Soak {
    /// Runs the command.
    pub(super) fn run(&self) -> Result<ExitCode> {
        if !self.no_build && cri::build()? != ExitCode::SUCCESS {
            return Ok(ExitCode::FAILURE);
        }
        let session = Session::up_beside_containerd("soak")?;
        let mut samples = Samples::default();
        let program = cri::PROGRAM;
        let measured = plan::part(&session, program, PART, self.pods, PART, &mut samples);
        let down = session.down();
        measured?;
        down.context("take the stack down")?;
        publish("soak", &samples, &rows(&samples)?)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A row for each program, kind and number of pods.
fn rows(samples: &Samples) -> Result<Vec<Row>> {
    let pods = samples.all(PART, "pods")?;
    let seconds = samples.last(PART, "seconds")?;
    let pace = samples.last(PART, "pods")? / seconds;
    let mut rows = vec![
        Row::one("pods a second", "", pace),
        Row::many("life of a pod", "ms", samples.series(PART, "life")?),
    ];
    for (kind, title, unit, factor) in KINDS {
        for program in PROGRAMS {
            let numbers = samples.all(PART, &format!("{kind}_{program}"))?;
            for (pods, number) in pods.iter().zip(numbers) {
                let what = format!("{title} of {program} after {pods} pods");
                rows.push(Row::one(what, unit, number / factor));
            }
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_the_pods_after_which_it_was_taken() {
        let mut numbers = serde_json::json!({
            "pods": [0.0, 10.0], "seconds": [5.0], "life": [300.0],
        });
        for program in PROGRAMS {
            for (kind, ..) in KINDS {
                numbers[format!("{kind}_{program}")] = serde_json::json!([1024.0, 2048.0]);
            }
        }
        let printed = serde_json::json!({ "samples": numbers, "facts": {} }).to_string();
        let mut samples = Samples::default();
        samples.add(PART, &printed).unwrap();
        let rows = rows(&samples).unwrap();
        assert_eq!(rows.len(), 2 + 2 * KINDS.len() * PROGRAMS.len());
        assert_eq!(rows[0].to_json()["figures"]["value"], 2.0);
        let after = rows[3].to_json();
        assert_eq!(after["what"], "VmRSS of vmlet after 10 pods");
        assert_eq!(after["figures"]["value"], 2.0);
    }
}
