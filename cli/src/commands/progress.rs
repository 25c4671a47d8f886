//! The progress bar of a pull.
//!
//! The daemon reports a pull in flight in the verbose status of its image, under the key `pull`.
//!
//! Invariant: a daemon that reports nothing, or nonsense, changes only what is shown.
//! Failure: none.

use std::convert::Infallible;
use std::time::Duration;

use cri_proto::v1::ImageSpec;
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval};

use crate::runtime::Runtime;

const TICK: Duration = Duration::from_millis(200);

/// How far a pull is.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Progress {
    pub(super) received_bytes: u64,
    pub(super) total_bytes: Option<u64>,
}

impl Progress {
    /// Rounded down; `None` without a known size.
    pub(super) fn percent(&self) -> Option<u8> {
        let total = self.total_bytes.filter(|total| *total > 0)?;
        let done = u128::from(self.received_bytes.min(total)) * 100;
        u8::try_from(done / u128::from(total)).ok()
    }
}

/// Removes the bar from the terminal when the pull ends, however it ends.
struct Bar(ProgressBar);

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Draws until dropped. On anything but a terminal, a line is printed for each tenth of a pull.
pub(super) async fn show(runtime: &Runtime, image: ImageSpec) -> Infallible {
    let mut tenths = 0;
    let bar = Bar(ProgressBar::no_length());
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let status = runtime.image_status(image.clone(), true).await;
        if let Some(progress) = status.ok().and_then(|s| parse(s.info.get("pull")?)) {
            draw(&bar.0, &progress);
            let percent = progress.percent().filter(|_| bar.0.is_hidden());
            if let Some(percent) = percent.filter(|percent| percent / 10 > tenths) {
                tenths = percent / 10;
                eprintln!("pull     {percent}%");
            }
        }
    }
}

fn parse(text: &str) -> Option<Progress> {
    serde_json::from_str(text).ok()
}

fn draw(bar: &ProgressBar, progress: &Progress) {
    let template = match progress.total_bytes {
        Some(total) => {
            bar.set_length(total);
            "pull     {bar:30} {percent}% {bytes}/{total_bytes} {bytes_per_sec} {eta}"
        }
        None => "pull     {spinner} {bytes} {bytes_per_sec}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_position(progress.received_bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read_with_and_without_a_total() {
        let known = Progress {
            received_bytes: 5,
            total_bytes: Some(10),
        };
        assert_eq!(parse(r#"{"receivedBytes":5,"totalBytes":10}"#), Some(known));
        let unknown = Progress {
            received_bytes: 5,
            total_bytes: None,
        };
        assert_eq!(
            parse(r#"{"receivedBytes":5,"totalBytes":null}"#),
            Some(unknown)
        );
        assert_eq!(parse("{}"), None);
        assert_eq!(parse(r#"{"receivedBytes":-1}"#), None);
    }

    #[test]
    fn percentages_are_whole_and_never_above_100() {
        let percent = |received_bytes, total_bytes| {
            let progress = Progress {
                received_bytes,
                total_bytes,
            };
            progress.percent()
        };
        assert_eq!(percent(0, Some(3)), Some(0));
        assert_eq!(percent(2, Some(3)), Some(66));
        assert_eq!(percent(4, Some(3)), Some(100));
        assert_eq!(percent(u64::MAX, Some(u64::MAX)), Some(100));
        assert_eq!((percent(1, Some(0)), percent(1, None)), (None, None));
    }

    #[test]
    fn both_forms_of_the_bar_are_valid() {
        let bar = ProgressBar::hidden();
        draw(
            &bar,
            &Progress {
                received_bytes: 5,
                total_bytes: None,
            },
        );
        draw(
            &bar,
            &Progress {
                received_bytes: 6,
                total_bytes: Some(10),
            },
        );
        assert_eq!((bar.position(), bar.length()), (6, Some(10)));
    }
}
