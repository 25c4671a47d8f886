//! Looks for damage in a layer.
//!
//! Invariant: the tables of one file are read, and nothing is repaired; what its header says of other files is not followed.
//! Clusters that nothing refers to are no damage: an emulator that is killed leaves them.
//! Failure: [`Failed`] without a verdict; the file is as it was.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use super::pulled::alone;
use super::run::run_reading;
use super::{Failed, Guard, QemuImg, Time};
use crate::images::Format;

/// How long the tables may be read.
const READ: Duration = Duration::from_secs(600);

/// The longest report in bytes.
const REPORT: usize = 16 << 10;

/// What the program's words about damage begin with.
const DAMAGE: &str = "ERROR";

/// What the program has found.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Report {
    #[serde(default)]
    corruptions: u64,
    check_errors: u64,
}

impl QemuImg {
    /// The damage of a layer that a machine may have, but writes nothing to; none: its tables are as they should be.
    pub async fn damage(&self, path: &Path, guard: Guard) -> Result<Option<String>, Failed> {
        let checked = self.check(path, guard).await;
        checked.map_err(|reason| {
            let path = path.to_owned();
            Failed { path, reason }
        })
    }

    async fn check(&self, path: &Path, guard: Guard) -> Result<Option<String>, String> {
        let disk = self.open(path, "open it", |path| File::open(path)).await?;
        let this = self.for_run()?;
        let lent = this.share(&disk, Some(guard)).await?;
        let checked = async {
            let file = lent.inherited()?;
            let whole = alone(Format::Qcow2, &file);
            let time = Time::short(READ);
            // It writes no file.
            let mut program = this.program(vec![file], 0, time);
            program.args(["check", "-U", "--output=json"]);
            program.arg(format!("json:{whole}"));
            let mut printed = Vec::new();
            let take = |piece: &[u8]| {
                let rest = REPORT - printed.len();
                printed.extend_from_slice(&piece[..piece.len().min(rest)]);
            };
            let ended = run_reading(program, &lent, time, take).await;
            verdict(&printed, &ended)
        };
        let checked = checked.await;
        lent.take_back().await;
        checked
    }
}

fn verdict(printed: &[u8], ended: &Result<(), String>) -> Result<Option<String>, String> {
    let words = ended.as_ref().err();
    let first = words.and_then(|words| words.lines().next());
    match serde_json::from_slice::<Report>(printed) {
        Ok(report) if report.check_errors > 0 => Err(format!(
            "qemu-img could not read {} tables",
            report.check_errors
        )),
        Ok(report) if report.corruptions > 0 => Ok(Some(format!(
            "qemu-img found {} damaged places: {}",
            report.corruptions,
            first.unwrap_or_default()
        ))),
        Ok(_) => Ok(None),
        // So much damage that its words were cut short.
        Err(_) if first.is_some_and(|first| first.starts_with(DAMAGE)) => {
            Ok(first.map(str::to_owned))
        }
        Err(error) => Err(words.cloned().unwrap_or_else(|| error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_referred_to_twice_is_damage_and_what_nothing_refers_to_is_none() {
        let judge =
            |printed: &str, words: &str| verdict(printed.as_bytes(), &Err(words.to_owned()));
        let report = |corruptions, errors| {
            format!(
                "{{\"corruptions\": {corruptions}, \"leaks\": 1, \"check-errors\": {errors}, \"format\": \"qcow2\"}}"
            )
        };
        let none = judge(&report(0, 0), "Leaked cluster 6");
        assert_eq!(none, Ok(None));
        let damage = judge(&report(2, 0), "ERROR cluster 5\nLeaked cluster 6");
        let words = "qemu-img found 2 damaged places: ERROR cluster 5";
        assert_eq!(damage, Ok(Some(words.to_owned())));
        let cut = judge("", "ERROR cluster 5\nERROR");
        assert_eq!(cut, Ok(Some("ERROR cluster 5".to_owned())));
        for (printed, words) in [("", "Could not open"), (&*report(1, 3), "ERROR cluster 5")] {
            judge(printed, words).unwrap_err();
        }
        verdict(b"", &Ok(())).unwrap_err();
    }
}
