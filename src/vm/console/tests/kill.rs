//! A follower in a process of its own, killed again and again.
//!
//! Invariant: the logs hold every line once, in order, whatever the kill hit.
//! Failure: the first line out of order is shown.

use std::process::Stdio;

use tokio::process::{Child, Command};

use super::*;

/// With it the test below is not the test, but the process that it starts.
const DIR: &str = "VMLET_TEST_CONSOLE_DIR";
const ROUNDS: usize = 12;
const LINES: usize = 20_000;

fn paths_in(dir: &Path) -> Paths {
    Paths {
        raw: dir.join("raw"),
        log: dir.join("0.log"),
    }
}

fn spawn(dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "vm::console::tests::kill::no_line_is_lost_or_doubled_by_kills",
        ])
        .env(DIR, dir)
        .env(faultpoint::DIR_VARIABLE, dir)
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// Lines with a counter, appended in pieces that end anywhere.
fn write(raw: &mut File, round: usize) {
    let numbers = round * LINES..(round + 1) * LINES;
    let text: String = numbers.map(|n| format!("line {n}\r\n")).collect();
    for piece in text.as_bytes().chunks(777) {
        raw.write_all(piece).unwrap();
    }
}

/// Every line of the rotated logs and of the last one.
fn lines(paths: &Paths, rotated: &[PathBuf]) -> Vec<String> {
    let logs = rotated.iter().chain([&paths.log]);
    let mut text = String::new();
    for record in logs.flat_map(|log| records(log)) {
        text.push_str(&record[2..]);
        if record.starts_with('F') {
            text.push('\n');
        }
    }
    text.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn no_line_is_lost_or_doubled_by_kills() {
    if let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) {
        // This is the process that is killed.
        let _follower = Follower::start(paths_in(&dir)).await.unwrap();
        return std::future::pending().await;
    }
    let dir = tempfile::tempdir().unwrap();
    let paths = paths_in(dir.path());
    let mut raw = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&paths.raw)
        .unwrap();
    fs::write(&paths.log, "").unwrap();
    let mut rotated = Vec::new();
    for round in 0..ROUNDS {
        let at_the_point = round % 2 == 0;
        if at_the_point {
            fs::write(dir.path().join(WRITTEN), "").unwrap();
        }
        let before = fs::metadata(&paths.log).unwrap().len();
        let mut child = spawn(dir.path());
        write(&mut raw, round);
        if !at_the_point {
            // Somewhere in what the guest has just printed.
            let some = (round * 7919 % 13) as u64 * 50_000;
            wait_for(&paths.log, |log| log.len() as u64 > before + some).await;
            child.start_kill().unwrap();
        }
        let status = timeout(LONG, child.wait()).await.unwrap().unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(9)
        );
        if round % 3 == 1 {
            let name = dir.path().join(format!("0.log.{round}"));
            fs::rename(&paths.log, &name).unwrap();
            fs::write(&paths.log, "").unwrap();
            rotated.push(name);
        }
    }
    Follower::start(paths.clone())
        .await
        .unwrap()
        .finish()
        .await
        .unwrap();
    let lines = lines(&paths, &rotated);
    let wrong = lines
        .iter()
        .enumerate()
        .find(|(n, line)| **line != format!("line {n}"));
    assert_eq!(wrong, None);
    assert_eq!(lines.len(), ROUNDS * LINES);
}
