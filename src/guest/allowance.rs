//! How much a guest may send that no session receives.
//!
//! Invariant: a guest that sends what no session receives is read at [`RATE`], and costs the node no
//! more than that; the output of commands is not counted.
//! Failure: none.

use std::time::Duration;

use tokio::time::Instant;

/// Bytes per second.
const RATE: u32 = 64 << 10;
/// Bytes that may come at once.
const BURST: u32 = 1 << 20;

/// What may still come.
#[derive(Debug)]
pub(super) struct Allowance {
    left: u32,
    since: Instant,
}

impl Default for Allowance {
    fn default() -> Self {
        Self {
            left: BURST,
            since: Instant::now(),
        }
    }
}

impl Allowance {
    /// Takes so many bytes, when they have become free.
    pub(super) async fn spend(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(BURST).min(BURST);
        let whole = self.since.elapsed().as_secs_f64() * f64::from(RATE);
        // Fractions of a byte wait for the next time.
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "cut to the range before"
        )]
        let gained = whole.min(f64::from(BURST)) as u32;
        if gained > 0 {
            self.left = self.left.saturating_add(gained).min(BURST);
            self.since = Instant::now();
        }
        if bytes > self.left {
            let missing = f64::from(bytes - self.left) / f64::from(RATE);
            tokio::time::sleep(Duration::from_secs_f64(missing)).await;
            self.since = Instant::now();
            self.left = bytes;
        }
        self.left -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_read_at_the_rate() {
        let mut allowance = Allowance::default();
        let begin = Instant::now();
        for _ in 0..32 {
            allowance.spend(32 << 10).await;
        }
        assert_eq!(begin.elapsed(), Duration::ZERO, "the burst");
        for _ in 0..20 {
            allowance.spend(32 << 10).await;
        }
        let took = begin.elapsed();
        assert!(
            took > Duration::from_secs(9) && took < Duration::from_secs(11),
            "{took:?}"
        );
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let begin = Instant::now();
        allowance.spend(usize::MAX).await;
        assert_eq!(
            begin.elapsed(),
            Duration::ZERO,
            "no more than a burst is saved"
        );
        allowance.spend(32 << 10).await;
        assert!(begin.elapsed() > Duration::ZERO);
    }
}
