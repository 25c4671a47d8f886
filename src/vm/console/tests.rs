//! Tests of followers on real files.
//!
//! Invariant: waits are for events of the log itself, with a deadline.
//! Failure: a missing event fails after the deadline and shows what the log held.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;

use super::*;

mod full_disk;
mod kill;

const LONG: Duration = Duration::from_secs(120);
const NEVER: Duration = Duration::from_secs(3600);

/// A console in a scratch directory.
struct Console {
    _dir: tempfile::TempDir,
    paths: Paths,
}

impl Console {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let raw = dir.path().join("raw");
        let log = dir.path().join("pod/container/0.log");
        Self {
            _dir: dir,
            paths: Paths { raw, log },
        }
    }

    async fn follow(&self) -> Follower {
        let settings = Settings {
            idle: NEVER,
            ..Settings::default()
        };
        Follower::start_with(self.paths.clone(), settings)
            .await
            .unwrap()
    }

    fn write(&self, text: &str) {
        let raw = OpenOptions::new().append(true).open(&self.paths.raw);
        raw.unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn log(&self) -> Vec<String> {
        records(&self.paths.log)
    }

    async fn logs(&self, expected: &[&str]) {
        wait_for(&self.paths.log, |log| records_in(log) == expected).await;
    }
}

/// Tag and text of each record.
fn records(log: &Path) -> Vec<String> {
    records_in(&fs::read(log).unwrap())
}

fn records_in(log: &[u8]) -> Vec<String> {
    let text = String::from_utf8(log.to_vec()).unwrap();
    let record = |line: &str| Some(line.split_once(" stdout ")?.1.to_owned());
    text.lines()
        .map(|line| record(line).unwrap_or_else(|| line.to_owned()))
        .collect()
}

/// Waits until the log that has this name now holds what is wanted.
async fn wait_for(path: &Path, wanted: impl Fn(&[u8]) -> bool) {
    let watch = Watch::on(&File::open(path).unwrap()).unwrap();
    let found = async {
        while !wanted(&fs::read(path).unwrap()) {
            watch.changed().await;
        }
    };
    if timeout(LONG, found).await.is_err() {
        panic!(
            "not in time; the log: {}",
            fs::read(path).unwrap().escape_ascii()
        );
    }
}

#[tokio::test]
async fn what_another_thread_appends_shows_up_as_lines() {
    let console = Console::new();
    let _follower = console.follow().await;
    assert_eq!(console.paths.raw.metadata().unwrap().mode() & 0o777, 0o600);
    let lines: Vec<String> = (0..500).map(|n| format!("line {n}")).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            lines
                .iter()
                .for_each(|line| console.write(&format!("{line}\r\n")))
        });
    });
    let expected: Vec<String> = lines.iter().map(|line| format!("F {line}")).collect();
    console
        .logs(&expected.iter().map(String::as_str).collect::<Vec<_>>())
        .await;
    let log = fs::read_to_string(&console.paths.log).unwrap();
    let time = log.split(' ').next().unwrap();
    let shape = time.replace(|c: char| c.is_ascii_digit(), "0");
    assert_eq!(shape, "0000-00-00T00:00:00.000000000Z");
}

#[tokio::test]
async fn a_prompt_is_shown_after_a_while_and_its_line_goes_on() {
    let console = Console::new();
    let settings = Settings {
        idle: Duration::from_millis(50),
        ..Settings::default()
    };
    let _follower = Follower::start_with(console.paths.clone(), settings)
        .await
        .unwrap();
    console.write("booted\r\nlogin: ");
    console.logs(&["F booted", "P login: "]).await;
    console.write("root\r\n");
    console.logs(&["F booted", "P login: ", "F root"]).await;
}

#[tokio::test]
async fn a_fast_guest_has_its_lines_whole() {
    let console = Console::new();
    let _follower = console.follow().await;
    console.write("first\nsec");
    console.logs(&["F first"]).await;
    console.write("ond\n");
    console.logs(&["F first", "F second"]).await;
}

#[tokio::test]
async fn a_long_line_is_logged_in_pieces() {
    let console = Console::new();
    let follower = console.follow().await;
    console.write(&"x".repeat(40_000));
    follower.finish().await.unwrap();
    let sizes: Vec<_> = console
        .log()
        .iter()
        .map(|r| (r[..1].to_owned(), r.len() - 2))
        .collect();
    let expected = [("P", 16_384), ("P", 16_384), ("F", 7232)].map(|(t, n)| (t.to_owned(), n));
    assert_eq!(sizes, expected);
}

#[tokio::test]
async fn finish_logs_everything_and_keeps_the_files_until_they_are_removed() {
    let console = Console::new();
    let follower = console.follow().await;
    console.write(&"line\n".repeat(100_000));
    console.write("Power down");
    follower.finish().await.unwrap();
    let log = console.log();
    assert_eq!(log.len(), 100_001);
    assert_eq!(log.last().unwrap(), "F Power down");
    console.follow().await.finish().await.unwrap();
    assert_eq!(console.log().len(), 100_001, "a second finish adds nothing");
    for _ in 0..2 {
        remove(&console.paths).await.unwrap();
        let left = console
            .paths
            .raw
            .parent()
            .unwrap()
            .read_dir()
            .unwrap()
            .count();
        assert_eq!(left, 1, "only the log's directory");
    }
    assert!(console.paths.log.exists());
}

#[tokio::test]
async fn after_a_rotation_lines_go_to_the_new_file_only() {
    let console = Console::new();
    let follower = console.follow().await;
    console.write("old\n");
    console.logs(&["F old"]).await;
    let rotated = console.paths.log.with_extension("log.20260102-030405");
    fs::rename(&console.paths.log, &rotated).unwrap();
    follower.reopen().await.unwrap();
    assert_eq!(console.log(), [""; 0], "made before the answer");
    console.write("new\n");
    console.logs(&["F new"]).await;
    follower.reopen().await.unwrap();
    console.write("newer\n");
    console.logs(&["F new", "F newer"]).await;
    assert_eq!(records(&rotated), ["F old"]);
}

#[tokio::test]
async fn the_next_follower_goes_on_where_the_last_one_stopped() {
    let console = Console::new();
    let follower = console.follow().await;
    assert!(matches!(
        Follower::start(console.paths.clone()).await,
        Err(Error::Busy { .. })
    ));
    console.write("one\ntw");
    console.logs(&["F one"]).await;
    follower.stop().await;
    console.write("o\nthree\n");
    let _follower = console.follow().await;
    console.logs(&["F one", "F two", "F three"]).await;
}

#[tokio::test]
async fn consumed_bytes_give_their_disk_space_back() {
    let console = Console::new();
    let follower = console.follow().await;
    for _ in 0..64 {
        console.write(&"0123456789abcde\n".repeat(2048));
    }
    follower.finish().await.unwrap();
    let raw = console.paths.raw.metadata().unwrap();
    assert_eq!(raw.len(), 2 * 1024 * 1024);
    assert!(
        raw.blocks() * 512 <= 128 * 1024,
        "{} blocks left",
        raw.blocks()
    );
}

#[tokio::test]
async fn a_raw_file_that_another_program_cuts_is_followed_from_its_start() {
    let console = Console::new();
    let _follower = console.follow().await;
    console.write("a long line of the past\n");
    console.logs(&["F a long line of the past"]).await;
    OpenOptions::new()
        .write(true)
        .open(&console.paths.raw)
        .unwrap()
        .set_len(0)
        .unwrap();
    console.write("again\n");
    console
        .logs(&["F a long line of the past", "F again"])
        .await;
}

#[tokio::test]
async fn a_removed_log_is_made_again_for_the_next_line() {
    let console = Console::new();
    let follower = console.follow().await;
    console.write("lost with its file\n");
    console.logs(&["F lost with its file"]).await;
    fs::remove_dir_all(console.paths.log.parent().unwrap()).unwrap();
    console.write("kept\n");
    follower.finish().await.unwrap();
    assert_eq!(console.log(), ["F kept"]);
}

#[tokio::test]
async fn a_log_error_keeps_the_bytes_until_writes_succeed() {
    let console = Console::new();
    let in_the_way = console.paths.log.parent().unwrap().parent().unwrap();
    fs::write(in_the_way, "").unwrap();
    let follower = console.follow().await;
    console.write("patient\n");
    assert!(matches!(
        follower.reopen().await,
        Err(Error::OpenLog { .. })
    ));
    fs::remove_file(in_the_way).unwrap();
    follower.reopen().await.unwrap();
    console.logs(&["F patient"]).await;
}

/// The clock jumps from pause to pause while no thread works.
#[tokio::test(start_paused = true)]
async fn finish_gives_up_after_its_deadline_and_can_be_repeated() {
    let console = Console::new();
    let in_the_way = console.paths.log.parent().unwrap().parent().unwrap();
    fs::write(in_the_way, "").unwrap();
    let follower = console.follow().await;
    console.write("patient\n");
    let started = Instant::now();
    assert!(matches!(
        follower.finish().await,
        Err(Error::OpenLog { .. })
    ));
    assert!(started.elapsed() <= DEADLINE);
    fs::remove_file(in_the_way).unwrap();
    console.follow().await.finish().await.unwrap();
    assert_eq!(console.log(), ["F patient"]);
}

#[tokio::test]
async fn a_dropped_follower_lets_go_of_its_file() {
    let console = Console::new();
    let Follower { commands, task, .. } = console.follow().await;
    drop(commands);
    timeout(LONG, task).await.unwrap().unwrap();
    console.follow().await.stop().await;
}
