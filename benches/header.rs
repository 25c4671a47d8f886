//! Times the check of a disk's first bytes; `cargo xtask bench images` runs it.
//!
//! Invariant: prints one JSON object with times in microseconds; judges the bytes that the daemon
//! would judge.
//! Failure: exit code 1 and one line on stderr.

#![allow(clippy::print_stdout, reason = "the samples are this program's output")]

use std::fs::File;
use std::hint::black_box;
use std::io::Read as _;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use daemon::fuzzing::judge;

/// What the daemon reads of a file.
const HEAD: u64 = 64 << 10;
const LIMIT: u64 = 1 << 40;
/// Judgements of one sample.
const TIMES: u32 = 100;
const SAMPLES: usize = 1000;

fn main() -> ExitCode {
    match measure() {
        Ok(samples) => {
            println!("{samples}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("header: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<serde_json::Value> {
    // cargo adds an option of its own.
    let mut arguments = std::env::args().skip(1);
    let path = arguments
        .find(|argument| !argument.starts_with('-'))
        .context("name a disk")?;
    let file = File::open(&path).with_context(|| path.clone())?;
    let length = file.metadata()?.len();
    let mut head = Vec::new();
    file.take(HEAD).read_to_end(&mut head)?;
    judge(&head, Some(length), LIMIT)?;
    let mut samples = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        let begun = Instant::now();
        for _ in 0..TIMES {
            let _ = black_box(judge(black_box(&head), Some(length), LIMIT));
        }
        samples.push(begun.elapsed().as_secs_f64() * 1e6 / f64::from(TIMES));
    }
    Ok(serde_json::json!({ "samples": { "judge": samples }, "facts": {} }))
}
