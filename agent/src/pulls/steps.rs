//! At which points of a pull its pod gets an event, and the text of that event.
//!
//! Invariant: a pull has [`MOST`] events at most; the same point of the same download has the same
//! key, however often kubelet repeats the pull. Texts are bounded and printable.
//! Failure: none.

use nodeapi::v1::Pull;

/// Percents from which on there is an event.
const PERCENTS: [u64; 4] = [75, 50, 25, 10];
/// Bytes from which on a download of unknown size has its first event, the next one at twice as
/// much.
const UNSIZED: u64 = 256 << 20;
/// Most events of one pull.
const MOST: u32 = 12;
/// Longest name of an image in a text, in bytes.
const LONGEST: usize = 256;

/// A point that a pull has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Point {
    /// This many percent of so many bytes.
    Percent { percent: u64, total: u64 },
    /// This many bytes of an unknown number.
    Bytes(u64),
}

/// The points that became events.
#[derive(Debug, Default)]
pub(super) struct Passed {
    last: Option<Point>,
    count: u32,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Text {
    pub(super) point: Point,
    /// What makes two events the same.
    pub(super) key: String,
    pub(super) note: String,
}

impl Passed {
    /// The event that is due; none when the pull has passed no further point.
    pub(super) fn due(&self, pull: &Pull) -> Option<Text> {
        let point = Point::from_pull(pull)?;
        if self.count >= MOST || self.last.is_some_and(|last| !point.is_after(last)) {
            return None;
        }
        let image = crds::text::printable(&pull.image, LONGEST);
        let received = pull.received_bytes;
        let note = match point {
            Point::Percent { total, .. } => format!(
                "Image {image}: {} % of {}",
                percent_of(received, total),
                size(total)
            ),
            Point::Bytes(_) => {
                let received = size(received);
                format!("Image {image}: {received}; its server does not send the size of the file")
            }
        };
        Some(Text {
            point,
            key: format!("pull {image} {point:?}"),
            note,
        })
    }

    /// The event exists, or is given up.
    pub(super) fn done(&mut self, point: Point) {
        self.last = Some(point);
        self.count += 1;
    }
}

impl Point {
    /// None before the first point, and after the last byte: kubelet reports the end of a pull.
    fn from_pull(pull: &Pull) -> Option<Self> {
        let received = pull.received_bytes;
        let total = pull.total_bytes;
        if total == 0 {
            let doublings = (received / UNSIZED).checked_ilog2()?;
            return Some(Self::Bytes(UNSIZED << doublings));
        }
        if received >= total {
            return None;
        }
        let done = percent_of(received, total);
        let passed = PERCENTS.into_iter().find(|percent| done >= *percent);
        passed.map(|percent| Self::Percent { percent, total })
    }

    /// A download of another size is another one: a registry's next layer, or the server's new
    /// file.
    fn is_after(self, last: Self) -> bool {
        match (self, last) {
            (
                Self::Percent { percent, total },
                Self::Percent {
                    percent: p,
                    total: t,
                },
            ) => total != t || percent > p,
            (Self::Bytes(bytes), Self::Bytes(last)) => bytes > last,
            (Self::Percent { .. }, Self::Bytes(_)) | (Self::Bytes(_), Self::Percent { .. }) => true,
        }
    }
}

fn percent_of(received: u64, total: u64) -> u64 {
    let percent = u128::from(received.min(total)) * 100 / u128::from(total.max(1));
    u64::try_from(percent).unwrap_or(100)
}

/// A size as people read it, rounded down.
fn size(bytes: u64) -> String {
    const UNITS: [(u32, &str); 3] = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    for (shift, unit) in UNITS {
        let whole = bytes >> shift;
        // The last digits of a number below ten say something.
        if (1..10).contains(&whole) {
            let tenths = ((u128::from(bytes) * 10) >> shift) % 10;
            return format!("{whole}.{tenths} {unit}");
        }
        if whole > 0 {
            return format!("{whole} {unit}");
        }
    }
    format!("{bytes} bytes")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn pull(received_bytes: u64, total_bytes: u64) -> Pull {
        Pull {
            image: "h.org/a:1".to_owned(),
            received_bytes,
            total_bytes,
            ..Pull::default()
        }
    }

    /// The notes of a pull that is seen at these sizes.
    fn notes(seen: &[(u64, u64)]) -> Vec<String> {
        let mut passed = Passed::default();
        let mut notes = Vec::new();
        for (received, total) in seen {
            if let Some(text) = passed.due(&pull(*received, *total)) {
                passed.done(text.point);
                notes.push(text.note);
            }
        }
        notes
    }

    #[test]
    fn a_pull_has_an_event_at_four_points() {
        let seen: Vec<_> = (0..=512).map(|mib| (mib * MIB, 512 * MIB)).collect();
        let percents = ["10", "25", "50", "75"];
        let words = percents.map(|p| format!("Image h.org/a:1: {p} % of 512 MiB"));
        assert_eq!(notes(&seen), words);
    }

    #[test]
    fn points_that_no_message_showed_are_left_out() {
        let seen = [(9, 100), (62, 100), (70, 100), (62, 100), (99, 100)];
        let words = ["62", "99"].map(|p| format!("Image h.org/a:1: {p} % of 100 bytes"));
        assert_eq!(notes(&seen), words);
    }

    #[test]
    fn the_end_of_a_download_has_no_event() {
        assert_eq!(notes(&[(9, 100), (100, 100), (101, 100)]), [""; 0]);
    }

    #[test]
    fn a_pull_of_unknown_size_has_an_event_whenever_it_has_doubled() {
        let seen: Vec<_> = (0..1100).map(|mib| (mib * MIB, 0)).collect();
        let words = ["256 MiB", "512 MiB", "1.0 GiB"].map(|size| {
            format!("Image h.org/a:1: {size}; its server does not send the size of the file")
        });
        assert_eq!(notes(&seen), words);
    }

    #[test]
    fn a_server_that_changes_the_size_causes_few_events() {
        let seen: Vec<_> = (100..10_000).map(|total| (total / 2, total)).collect();
        assert_eq!(notes(&seen).len(), MOST as usize);
    }

    #[test]
    fn a_repeated_pull_has_the_keys_of_the_one_before() {
        let due = |received| Passed::default().due(&pull(received, 1000)).unwrap();
        let first = due(500);
        let again = due(620);
        assert_eq!(first.key, again.key);
        assert_ne!(first.note, again.note);
        assert_ne!(first.key, due(750).key);
    }

    #[test]
    fn names_are_printable_and_bounded() {
        let mut hostile = pull(50, 100);
        hostile.image = format!("h/\u{202e}a\n\u{1b}[2J{}", "x".repeat(5000));
        let text = Passed::default().due(&hostile).unwrap();
        assert!(text.note.starts_with("Image h/a[2Jxxx"), "{}", text.note);
        assert!(text.note.len() < 300 && text.key.len() < 400, "{text:?}");
    }

    #[rstest]
    #[case(0, "0 bytes")]
    #[case(1023, "1023 bytes")]
    #[case(1536, "1.5 KiB")]
    #[case(10 * 1024 + 1000, "10 KiB")]
    #[case(512 << 20, "512 MiB")]
    #[case((1 << 30) + (512 << 20), "1.5 GiB")]
    #[case(u64::MAX, "17179869183 GiB")]
    fn sizes_are_short(#[case] bytes: u64, #[case] words: &str) {
        assert_eq!(size(bytes), words);
    }
}
