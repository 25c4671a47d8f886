//! The host on which the numbers were measured.
//!
//! Invariant: nothing that names the machine or its owner.
//! Failure: what cannot be read is "unknown".

use std::fmt;
use std::fs;

use serde_json::{Value, json};

use super::samples::Samples;

/// What matters for comparing two runs.
#[derive(Debug)]
pub(super) struct Machine {
    cores: usize,
    processor: String,
    kernel: String,
    /// `None` where no machine was started.
    accelerator: Option<String>,
    /// Processes that wanted to run, on average of the last five minutes.
    load: String,
}

impl Machine {
    /// This machine; the accelerator is in the samples.
    pub(super) fn read(samples: &Samples) -> Self {
        let file = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let processor = file("/proc/cpuinfo");
        let processor = processor
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
            .map(|(_, name)| name.trim());
        let load = file("/proc/loadavg");
        Self {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            processor: known(processor),
            kernel: known(Some(file("/proc/sys/kernel/osrelease").trim())),
            accelerator: samples.fact("starts", "accelerator").map(ToOwned::to_owned),
            load: known(load.split_whitespace().nth(1)),
        }
    }

    /// The same, for the file.
    pub(super) fn to_json(&self) -> Value {
        json!({
            "cores": self.cores,
            "processor": self.processor,
            "kernel": self.kernel,
            "accelerator": self.accelerator,
            "load5": self.load,
        })
    }
}

fn known(text: Option<&str>) -> String {
    let text = text.filter(|text| !text.is_empty());
    text.unwrap_or("unknown").to_owned()
}

impl fmt::Display for Machine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "bench: {} cores of {}, kernel {}, ",
            self.cores, self.processor, self.kernel
        )?;
        if let Some(accelerator) = &self.accelerator {
            write!(formatter, "accelerator {accelerator}, ")?;
        }
        write!(formatter, "load {} over the last five minutes", self.load)
    }
}
