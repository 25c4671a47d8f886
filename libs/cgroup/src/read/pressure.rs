//! Pressure stall information of a pod: how long its processes waited for a resource.
//!
//! Invariant: averages are kept as hundredths of a percent, which is what the kernel writes.
//! Failure: none; a kernel without this information, or a file with other content, gives nothing.

use std::path::Path;

use super::text;

/// Pressure on each resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pressures {
    /// Of CPU time.
    pub cpu: Option<Pressure>,
    /// Of memory.
    pub memory: Option<Pressure>,
    /// Of disks.
    pub io: Option<Pressure>,
}

/// Pressure on one resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pressure {
    /// While at least one process waited.
    pub some: Stall,
    /// While all processes waited; older kernels do not write it for the CPU.
    pub full: Option<Stall>,
}

/// Time lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stall {
    /// In microseconds since the directory was made.
    pub total_micros: u64,
    /// Share of the last 10 seconds, in hundredths of a percent.
    pub avg10: u32,
    /// Share of the last 60 seconds, in hundredths of a percent.
    pub avg60: u32,
    /// Share of the last 300 seconds, in hundredths of a percent.
    pub avg300: u32,
}

pub(super) fn read(pod: &Path) -> Pressures {
    let of = |file| parse(&text(pod, file));
    Pressures {
        cpu: of("cpu.pressure"),
        memory: of("memory.pressure"),
        io: of("io.pressure"),
    }
}

fn parse(text: &str) -> Option<Pressure> {
    let line = |word: &str| {
        text.lines()
            .find_map(|line| stall(line.strip_prefix(word)?))
    };
    Some(Pressure {
        some: line("some ")?,
        full: line("full "),
    })
}

/// `avg10=0.00 avg60=0.00 avg300=0.00 total=0`.
fn stall(text: &str) -> Option<Stall> {
    let value = |key: &str| {
        let mut pairs = text
            .split_whitespace()
            .filter_map(|pair| pair.split_once('='));
        pairs
            .find(|(found, _)| *found == key)
            .map(|(_, value)| value)
    };
    Some(Stall {
        total_micros: value("total")?.parse().ok()?,
        avg10: hundredths(value("avg10")?)?,
        avg60: hundredths(value("avg60")?)?,
        avg300: hundredths(value("avg300")?)?,
    })
}

/// A number with two decimals.
fn hundredths(text: &str) -> Option<u32> {
    let (whole, part) = text.split_once('.')?;
    let part: u32 = part.parse().ok().filter(|_| part.len() == 2)?;
    whole
        .parse::<u32>()
        .ok()?
        .checked_mul(100)?
        .checked_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lines_are_read() {
        let text = "some avg10=1.25 avg60=0.07 avg300=100.00 total=123456\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        let some = Stall {
            total_micros: 123_456,
            avg10: 125,
            avg60: 7,
            avg300: 10_000,
        };
        let full = Stall {
            total_micros: 7,
            ..Stall::default()
        };
        let both = Pressure {
            some,
            full: Some(full),
        };
        assert_eq!(parse(text), Some(both));
        let (first, _) = text.split_once('\n').unwrap();
        assert_eq!(parse(first), Some(Pressure { some, full: None }));
    }

    #[test]
    fn other_content_gives_nothing() {
        for text in [
            "",
            "full avg10=0.00 avg60=0.00 avg300=0.00 total=7",
            "some avg10=0.0 avg60=0.00 avg300=0.00 total=7",
            "some avg10=0.00 avg60=0.00 avg300=0.00",
            "some avg10=99999999.00 avg60=0.00 avg300=0.00 total=1",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
