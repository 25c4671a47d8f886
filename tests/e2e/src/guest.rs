//! What the guest of the test image says on its console.
//!
//! Invariant: only whole lines are read; a line that is cut or foreign is passed over.
//! Failure: none here; callers compare.

/// A line `VMLET-TICK <n> uptime=<seconds>`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tick {
    /// Counts from the guest's boot.
    pub count: u64,
    /// Seconds since the guest's kernel started.
    pub uptime: f64,
}

/// The ticks in a CRI log, in order.
pub fn ticks(log: &str) -> Vec<Tick> {
    log.lines().filter_map(tick).collect()
}

fn tick(line: &str) -> Option<Tick> {
    let (_, rest) = line.split_once("VMLET-TICK ")?;
    let (count, uptime) = rest.split_once(" uptime=")?;
    let uptime = uptime.split_whitespace().next()?;
    Some(Tick {
        count: count.parse().ok()?,
        uptime: uptime.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_found_among_other_lines() {
        let log = "t stdout F hello\nt stdout F VMLET-TICK 7 uptime=12.5\nt stdout P VMLET-TI\n";
        assert_eq!(
            ticks(log),
            [Tick {
                count: 7,
                uptime: 12.5
            }]
        );
    }
}
