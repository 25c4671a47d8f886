//! Measures the time until a guest's first output, with and without Vmlet.
//!
//! Invariant: both kinds of runs take turns and end at the first byte; the first of each is not
//! counted.
//! Failure: a guest that stays silent, with what QEMU reported.

use anyhow::Result;
use e2e::bench::Stack;

use crate::samples::Samples;
use crate::trial::{Awaited, both};

/// `count` runs of each kind.
pub(crate) async fn measure(stack: &Stack, count: u32) -> Result<Samples> {
    let cri = stack.cri_with_image().await?;
    let mut samples = Samples::default();
    for number in 0..=count {
        let pod = stack.pod(&format!("console-{number}"));
        let (ours, by_hand) = both(stack, &cri, &pod, &Awaited::FirstByte).await?;
        if number > 0 {
            samples.time("console_vmlet", ours.after);
            samples.time("console_by_hand", by_hand.after);
        }
    }
    Ok(samples)
}
