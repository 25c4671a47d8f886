//! Deadlines in virtual time, and the sources of these tests, which wait in one way.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::*;

/// What sleeps.
const SLEEPS: [&str; 2] = ["sleep(", "sleep_until("];

/// Files that sleep for another reason than to wait for something, how often, and the reason.
const ELSEWHERE: [(&str, usize, &str); 6] = [
    ("src/chaos.rs", 2, "pauses that the script prescribes"),
    (
        "src/chaos/programs.rs",
        1,
        "the script says how long a program stays dead",
    ),
    (
        "tests/api/status.rs",
        1,
        "the period at which an agent renews its lease",
    ),
    (
        "tests/clusters/api_away.rs",
        1,
        "how long the API server is away is part of what is tested",
    ),
    (
        "tests/clusters/proxy.rs",
        1,
        "the delay of a runtime that is slow is what is tested",
    ),
    (
        "tests/clusters/thirty.rs",
        1,
        "figures of a span in which no look disturbs the node",
    ),
];

const DEADLINE: Duration = Duration::from_secs(7);

#[test]
fn a_slow_machine_has_longer_deadlines_and_a_quick_one_the_same() {
    for (text, wanted) in [(None, 1.0), (Some("2.5"), 2.5), (Some("0.3"), 1.0)] {
        assert!((slowness(text).unwrap() - wanted).abs() < 1e-9, "{text:?}");
    }
    for text in ["", "slow", "-1", "NaN", "inf", "1000"] {
        let refused = format!("{:#}", slowness(Some(text)).unwrap_err());
        assert!(refused.contains(SLOWNESS), "{refused}");
    }
}

#[test]
fn no_time_is_left_after_the_end_of_a_test() {
    let now = Duration::from(ClockId::CLOCK_MONOTONIC.now().unwrap()).as_secs();
    assert_eq!(left(&now.to_string()).unwrap(), Duration::ZERO);
    let later = left(&(now + 1000).to_string()).unwrap();
    assert!(later > Duration::from_secs(900), "{later:?}");
    assert!(left("soon").unwrap_err().to_string().contains(ENDS));
}

#[tokio::test(start_paused = true)]
async fn a_missed_deadline_names_what_was_awaited_and_the_last_error() {
    let looks = Cell::new(0);
    let never = eventually(DEADLINE, "the moon", || async {
        looks.set(looks.get() + 1);
        bail!("look {}", looks.get())
    });
    let error: Result<()> = never.await;
    let error = format!("{:#}", error.unwrap_err());
    let within = scaled(DEADLINE).unwrap();
    let wanted = format!("the moon: not within {within:?}: look {}", looks.get());
    assert_eq!(error, wanted);
    let hung = eventually(DEADLINE, "the moon", std::future::pending::<Result<()>>);
    let error = hung.await.unwrap_err().to_string();
    let wanted = format!("the moon: not within {within:?}; the last look did not end");
    assert_eq!(error, wanted);
    let pending = in_time(DEADLINE, "the sun", std::future::pending::<Result<()>>());
    let error = pending.await.unwrap_err().to_string();
    assert_eq!(error, format!("the sun: not within {within:?}"));
}

/// What must always be the case is not awaited: the violation may heal before the next look.
#[tokio::test(start_paused = true)]
async fn a_violation_ends_a_wait_at_the_first_look_that_sees_it() {
    let looks = Cell::new(0);
    let wait = eventually(DEADLINE, "two machines", || async {
        looks.set(looks.get() + 1);
        outcome::always(looks.get() != 2, || "two on one node".to_owned())?;
        ensure!(looks.get() > 2, "not yet");
        Ok(())
    });
    let error = format!("{:#}", wait.await.unwrap_err());
    assert_eq!(looks.get(), 2);
    assert_eq!(
        error,
        "while awaiting two machines: [wrong] two on one node"
    );
}

#[tokio::test(start_paused = true)]
async fn what_came_while_the_machine_stood_still_is_seen_after_the_deadline() {
    let looks = Cell::new(0);
    let seen = eventually(DEADLINE, "the moon", || async {
        looks.set(looks.get() + 1);
        if looks.get() == 1 {
            tokio::time::advance(scaled(DEADLINE)? * 2).await;
            bail!("it was not there before");
        }
        Ok(())
    });
    seen.await.unwrap();
    assert_eq!(looks.get(), 2);
}

#[test]
fn tests_wait_by_looking_for_what_they_wait_for() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["src", "tests"] {
        sources(&root.join(folder), &mut files);
    }
    assert!(files.len() > 80, "only {} sources are found", files.len());
    let mut found = BTreeMap::new();
    for file in &files {
        let name = file.strip_prefix(root).unwrap().to_str().unwrap();
        let sleeps = sleeps(&fs::read_to_string(file).unwrap());
        if sleeps > 0 && !name.starts_with("src/wait") {
            found.insert(name, sleeps);
        }
    }
    let allowed = ELSEWHERE.map(|(file, sleeps, _)| (file, sleeps));
    assert_eq!(
        found,
        BTreeMap::from(allowed),
        "files and how often they sleep: await an event with `eventually` or `in_time`, or name \
         the reason here"
    );
}

#[test]
fn sleeps_are_found_in_code_and_not_in_comments() {
    let code = "tokio::time::sleep(PAUSE).await;\n// sleep(1) is no way\nstd::thread::sleep(A);\n\
                exec sleep 5\nsleep_until(b); none_sleep()";
    assert_eq!(sleeps(code), 3);
}

fn sleeps(text: &str) -> usize {
    let code = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let in_line = |line: &str| -> usize {
        let calls = SLEEPS.iter().map(|word| {
            // A longer name that ends so is another one.
            let named = |(at, _): &(usize, _)| {
                line[..*at].ends_with(|c| c == '_' || char::is_alphanumeric(c))
            };
            line.match_indices(word)
                .filter(|found| !named(found))
                .count()
        });
        calls.sum()
    };
    code.map(in_line).sum()
}

/// The sources below a folder.
pub(crate) fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}
