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
use serde::Deserialize;
use tokio::time::{MissedTickBehavior, interval};

use crate::runtime::Runtime;

const TICK: Duration = Duration::from_millis(200);

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Progress {
    received_bytes: u64,
    total_bytes: Option<u64>,
}

/// Removes the bar from the terminal when the pull ends, however it ends.
struct Bar(ProgressBar);

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Draws until dropped. On anything but a terminal, nothing is drawn.
pub(super) async fn show(runtime: &Runtime, image: ImageSpec) -> Infallible {
    let bar = Bar(ProgressBar::no_length());
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let status = runtime.image_status(image.clone(), true).await;
        if let Some(progress) = status.ok().and_then(|s| parse(s.info.get("pull")?)) {
            draw(&bar.0, &progress);
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
            "pull     {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}"
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
