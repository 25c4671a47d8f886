//! Waits for other processes; no other module of these tests polls.
//!
//! Invariant: a deadline is multiplied by the machine's slowness, which the runner measures at its
//! start and passes in `VMLET_TEST_SLOWNESS` (a decimal number, 1 without it); the last look begins
//! after the deadline, so that a machine that is paused loses no look. No wait goes on after
//! `VMLET_TEST_ENDS` (seconds of the monotonic clock), so that a test reports what it waits for before
//! the runner kills it.
//! Failure: the error of the last check behind the text `not within`. It is a defect unless
//! [`outcome`] knows that an API server was late.

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::sources;

use std::future::Future;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::time::ClockId;
use tokio::time::Instant;

use crate::outcome;

/// How many times slower this machine is than the one that deadlines are chosen for.
const SLOWNESS: &str = "VMLET_TEST_SLOWNESS";
/// When waits end, in seconds of the monotonic clock.
const ENDS: &str = "VMLET_TEST_ENDS";
/// No machine is slower, and a deadline that never comes is none.
const SLOWEST: f64 = 100.0;
/// Between two looks.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// A single look that takes longer than the deadline and this does not end.
const LONGEST_LOOK: Duration = Duration::from_secs(120);
/// What is not there by then takes long.
const SOON: Duration = Duration::from_secs(5);

/// Repeats `attempt` until it succeeds or the time is over; the last error is the reason. What must
/// be the case at each look is stated in it by [`always`](crate::always).
pub async fn eventually<T, F>(within: Duration, what: &str, attempt: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let within = allowed(within)?;
    let begun = Instant::now();
    let longest = scaled(LONGEST_LOOK)?;
    loop {
        let look = Instant::now();
        let is_last = begun.elapsed() > within;
        let left = within.saturating_sub(begun.elapsed()) + longest;
        let Ok(answer) = tokio::time::timeout(left, attempt()).await else {
            bail!("{}; the last look did not end", late(what, within));
        };
        match answer {
            Ok(value) => return Ok(value),
            Err(error) if outcome::is_violation(&error) => {
                return Err(error.context(format!("while awaiting {what}")));
            }
            Err(error) if is_last => {
                return Err(outcome::classified(error).context(late(what, within)));
            }
            Err(_) => {}
        }
        // Looking costs more than a guest's boot can spare on a busy machine.
        let pause = if begun.elapsed() < SOON {
            Duration::from_millis(100)
        } else {
            Duration::from_millis(500)
        };
        // A look that starts a program is to take a quarter of the time at most, however busy the
        // machine is.
        let pause = pause.max((look.elapsed() * 3).min(LONGEST_PAUSE));
        tokio::time::sleep(pause).await;
    }
}

/// Repeats `attempt` as long as its error says that it came too early, until the time is over. For
/// calls that block anyway.
#[expect(
    clippy::disallowed_methods,
    reason = "the pause between two looks, in a call that blocks"
)]
pub(crate) fn while_early<T>(
    within: Duration,
    is_early: impl Fn(&anyhow::Error) -> bool,
    attempt: impl Fn() -> Result<T>,
) -> Result<T> {
    let within = allowed(within)?;
    let begun = Instant::now();
    loop {
        match attempt() {
            Err(error) if is_early(&error) && begun.elapsed() < within => {
                std::thread::sleep(LONGEST_PAUSE);
            }
            answer => return answer,
        }
    }
}

/// Awaits something that signals its end itself, such as a stream.
pub async fn in_time<T>(
    within: Duration,
    what: &str,
    end: impl Future<Output = Result<T>>,
) -> Result<T> {
    let within = allowed(within)?;
    match tokio::time::timeout(within, end).await {
        Ok(ended) => ended,
        Err(_) => bail!(late(what, within)),
    }
}

/// A deadline on this machine, for programs that keep deadlines themselves.
pub fn scaled(within: Duration) -> Result<Duration> {
    static SLOW: OnceLock<Result<f64, String>> = OnceLock::new();
    let slow = SLOW.get_or_init(|| {
        let text = std::env::var(SLOWNESS).ok();
        slowness(text.as_deref()).map_err(|error| format!("{error:#}"))
    });
    match slow {
        Ok(slow) => Ok(within.mul_f64(*slow)),
        Err(error) => Err(anyhow!("{error}")),
    }
}

/// What a wait may take: its deadline on this machine, or what is left of the test's time.
pub(crate) fn allowed(within: Duration) -> Result<Duration> {
    let within = scaled(within)?;
    Ok(until_end()?.map_or(within, |left| within.min(left)))
}

/// What is left of the test's time; `None` without an end.
pub(crate) fn until_end() -> Result<Option<Duration>> {
    let ends = std::env::var(ENDS).ok();
    ends.map(|ends| left(&ends)).transpose()
}

/// How long it is until `ends`.
fn left(ends: &str) -> Result<Duration> {
    let seconds = ends
        .parse()
        .with_context(|| format!("{ENDS} is {ends:?}"))?;
    let now = Duration::from(ClockId::CLOCK_MONOTONIC.now()?);
    Ok(Duration::from_secs(seconds).saturating_sub(now))
}

fn slowness(text: Option<&str>) -> Result<f64> {
    let Some(text) = text else {
        return Ok(1.0);
    };
    let number: f64 = text
        .parse()
        .with_context(|| format!("{SLOWNESS} is {text:?}"))?;
    ensure!(
        (0.0..=SLOWEST).contains(&number),
        "{SLOWNESS} is {text:?}, which is no number from 0 to {SLOWEST}"
    );
    // A quicker machine gains nothing from shorter deadlines.
    Ok(number.max(1.0))
}

fn late(what: &str, within: Duration) -> String {
    format!("{what}: not within {within:?}")
}
