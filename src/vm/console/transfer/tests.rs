//! Tests of copying: kills at any point, rotations and the raw file's own accidents.
//!
//! Invariant: the logs together, oldest first, hold every console byte once and in order.
//! Failure: a failed case prints its shrunken history.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;

/// A console in a scratch directory.
struct Console {
    dir: tempfile::TempDir,
    transfer: Option<Transfer>,
    written: Vec<u8>,
    rotated: Vec<PathBuf>,
    output: Output,
}

impl Console {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut console = Self {
            dir,
            transfer: None,
            written: Vec::new(),
            rotated: Vec::new(),
            output: Output::new(),
        };
        console.start();
        console
    }

    fn paths(&self) -> Paths {
        Paths {
            raw: self.dir.path().join("raw"),
            log: self.dir.path().join("0.log"),
        }
    }

    fn start(&mut self) {
        let transfer = Transfer::open(self.paths(), self.output.clone());
        self.transfer = Some(transfer.unwrap());
    }

    fn transfer(&mut self) -> &mut Transfer {
        self.transfer.as_mut().unwrap()
    }

    fn write(&mut self, bytes: &[u8]) {
        let raw = fs::OpenOptions::new().append(true).open(self.paths().raw);
        raw.unwrap().write_all(bytes).unwrap();
        self.written.extend_from_slice(bytes);
    }

    fn log_length(&self) -> u64 {
        fs::metadata(self.paths().log).map_or(0, |m| m.len())
    }

    /// Ends as a kill would: a batch is written at most in part, its position not saved.
    fn kill_in_batch(&mut self, rest: Rest, kept: f64) {
        self.transfer().ready().unwrap();
        let spare = self.paths().raw.with_extension("pos.new");
        let before = self.log_length();
        // Without a spare file no position can be saved.
        let _ = fs::remove_file(&spare);
        fs::create_dir(&spare).unwrap();
        // It fails, or there was nothing to write.
        let _ = self.transfer().batch(rest);
        fs::remove_dir(&spare).unwrap();
        self.transfer = None;
        let added = self.log_length() - before;
        if added > 0 {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // of a test's dice
            let length = before + (added as f64 * kept) as u64;
            let log = fs::OpenOptions::new()
                .write(true)
                .open(self.paths().log)
                .unwrap();
            log.set_len(length).unwrap();
        }
    }

    /// Ends after the log was opened and before that was saved.
    fn kill_in_opening(&mut self) {
        self.transfer().reopen().unwrap();
        self.transfer = None;
    }

    fn rotate(&mut self) {
        let name = self
            .dir
            .path()
            .join(format!("0.log.{}", self.rotated.len()));
        if fs::rename(self.paths().log, &name).is_ok() {
            self.rotated.push(name);
        }
    }

    fn drain(&mut self) {
        while self.transfer().batch(Rest::End).unwrap().more {}
    }

    fn logged(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for log in self.rotated.iter().chain([&self.paths().log]) {
            bytes.extend(text_of(&fs::read(log).unwrap()));
        }
        bytes
    }
}

/// What the records of a log say.
fn text_of(log: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    for line in log.split_inclusive(|&b| b == b'\n') {
        let (time, record) = line.split_at("2026-01-02T03:04:05.000000006Z".len());
        assert!(
            time.starts_with(b"20") && time.ends_with(b"Z"),
            "{}",
            line.escape_ascii()
        );
        let text_part = record.strip_prefix(b" stdout ").expect("a stream");
        match text_part.split_at(2) {
            (b"F ", full) => text.extend_from_slice(full),
            (b"P ", partial) => text.extend_from_slice(partial.strip_suffix(b"\n").unwrap()),
            _ => panic!("a tag: {}", line.escape_ascii()),
        }
    }
    text
}

#[derive(Debug, Clone)]
enum Act {
    Say(Vec<u8>),
    Batch,
    Prompt,
    Kill { kept: f64, rest: Rest },
    KillOpening,
    Rotate { reopened: bool },
    Restart,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let text = proptest::string::string_regex("([a-z]{0,12}\n?){0,6}").unwrap();
    let long = (10_000_usize..200_000).prop_map(|n| b"0123456789\nx".repeat(n / 12));
    let rest = prop_oneof![Just(Rest::Hold), Just(Rest::Flush)];
    let act = prop_oneof![
        6 => text.prop_map(|t| Act::Say(t.into_bytes())),
        1 => long.prop_map(Act::Say),
        4 => Just(Act::Batch),
        1 => Just(Act::Prompt),
        3 => (0.0..=1.0, rest).prop_map(|(kept, rest)| Act::Kill { kept, rest }),
        1 => Just(Act::KillOpening),
        2 => any::<bool>().prop_map(|reopened| Act::Rotate { reopened }),
        1 => Just(Act::Restart),
    ];
    proptest::collection::vec(act, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_byte_is_logged_once_whatever_happens(acts in acts()) {
        let mut console = Console::new();
        for act in acts {
            match act {
                Act::Say(bytes) => console.write(&bytes),
                Act::Batch => { console.transfer().batch(Rest::Hold).unwrap(); }
                Act::Prompt => { console.transfer().batch(Rest::Flush).unwrap(); }
                Act::Kill { kept, rest } => {
                    console.kill_in_batch(rest, kept);
                    console.start();
                }
                Act::Rotate { reopened: true } => {
                    console.rotate();
                    console.transfer().reopen().unwrap();
                    prop_assert!(console.paths().log.exists());
                }
                Act::KillOpening => {
                    console.kill_in_opening();
                    console.start();
                }
                // Renamed between the kill and the restart.
                Act::Rotate { reopened: false } => {
                    console.kill_in_batch(Rest::Hold, 0.5);
                    console.rotate();
                    console.start();
                }
                Act::Restart => {
                    console.transfer = None;
                    console.start();
                }
            }
        }
        console.drain();
        let mut expected = console.written.clone();
        if expected.last().is_some_and(|&b| b != b'\n') {
            expected.push(b'\n');
        }
        prop_assert_eq!(console.logged(), expected);
    }
}

#[test]
fn text_that_came_a_moment_ago_waits_when_an_older_one_is_due() {
    let mut console = Console::new();
    console.write(b"login: ");
    let held = console.transfer().batch(Rest::Hold).unwrap().held;
    assert_eq!(held, Some(7));
    console.write(b"ro");
    let held = console.transfer().flush(7).unwrap().held;
    assert_eq!((held, console.logged()), (Some(9), Vec::new()));
    let held = console.transfer().flush(9).unwrap().held;
    assert_eq!((held, console.logged()), (None, b"login: ro".to_vec()));
}

#[test]
fn clients_receive_each_byte_once_whatever_becomes_of_the_log() {
    let mut console = Console::new();
    console.write(b"before\n");
    console.transfer().batch(Rest::Hold).unwrap();
    let mut client = console.output.subscribe();
    let mut next = || client.try_recv().map(|bytes| bytes.to_vec());
    console.write(b"login: ");
    console.transfer().batch(Rest::Hold).unwrap();
    assert_eq!(next().unwrap(), b"login: ");
    console.transfer().flush(14).unwrap();
    fs::remove_file(console.paths().log).unwrap();
    fs::create_dir(console.paths().log).unwrap();
    let said = [&b"root\n"[..], &[b'y'; CHUNK]].concat();
    console.write(&said);
    for _ in 0..2 {
        console.transfer().batch(Rest::Hold).unwrap_err();
    }
    let mut received = Vec::new();
    while let Ok(piece) = next() {
        received.extend(piece);
    }
    assert_eq!(received, said);
    fs::remove_dir(console.paths().log).unwrap();
    console.write(&[b'x'; CHUNK + 1]);
    console.transfer().batch(Rest::Hold).unwrap();
    let mut long = Vec::new();
    while let Ok(piece) = next() {
        long.extend(piece);
    }
    assert_eq!(long, [b'x'; CHUNK + 1]);
    fs::write(console.paths().raw, "second\n").unwrap();
    console.transfer().batch(Rest::Hold).unwrap();
    let after = "clients receive what follows a truncation";
    assert_eq!(next().unwrap(), b"second\n", "{after}");
}

#[test]
fn draining_twice_adds_nothing() {
    let mut console = Console::new();
    console.write(b"login: ");
    console.transfer().batch(Rest::Flush).unwrap();
    console.drain();
    let length = console.log_length();
    console.transfer = None;
    console.start();
    console.drain();
    assert_eq!(console.log_length(), length);
    assert_eq!(console.logged(), b"login: \n");
}

#[test]
fn a_position_that_cannot_be_saved_stops_after_one_batch_and_is_caught_up() {
    let mut console = Console::new();
    console.transfer().batch(Rest::Hold).unwrap();
    let spare = console.paths().raw.with_extension("pos.new");
    let _ = fs::remove_file(&spare);
    fs::create_dir(&spare).unwrap();
    console.write(b"one\n");
    for _ in 0..3 {
        let failed = console.transfer().batch(Rest::Hold);
        assert!(matches!(failed, Err(Error::SavePosition { .. })));
        console.write(b"more\n");
    }
    assert_eq!(console.logged(), b"one\n");
    fs::remove_dir(&spare).unwrap();
    console.drain();
    assert_eq!(console.logged(), b"one\nmore\nmore\nmore\n");
}

#[test]
fn many_short_lines_make_bounded_batches() {
    let mut console = Console::new();
    let lines = b"\n".repeat(100_000);
    console.write(&lines);
    loop {
        let before = console.log_length();
        let batch = console.transfer().batch(Rest::Hold).unwrap();
        assert!(console.log_length() - before <= 2 * OUTPUT as u64);
        if !batch.more {
            break;
        }
    }
    assert_eq!(console.logged(), lines);
}

#[test]
fn a_raw_file_that_was_cut_is_read_from_its_start() {
    let mut console = Console::new();
    console.write(b"a long line of the past\n");
    console.transfer().batch(Rest::Hold).unwrap();
    fs::OpenOptions::new()
        .write(true)
        .open(console.paths().raw)
        .unwrap()
        .set_len(0)
        .unwrap();
    console.write(b"again\n");
    console.transfer().batch(Rest::Hold).unwrap();
    assert_eq!(console.logged(), b"a long line of the past\nagain\n");
}

#[test]
fn a_raw_file_that_was_replaced_is_read_from_its_start() {
    let mut console = Console::new();
    console.write(b"old\n");
    console.drain();
    console.transfer = None;
    let other = console.dir.path().join("other");
    fs::write(&other, b"new and longer\n").unwrap();
    fs::rename(&other, console.paths().raw).unwrap();
    console.start();
    console.drain();
    assert_eq!(console.logged(), b"old\nnew and longer\n");
}

#[test]
fn without_a_position_punched_out_bytes_are_not_read_again() {
    let mut console = Console::new();
    console.write(&b"0123456789abcde\n".repeat(20_000));
    console.drain();
    console.transfer = None;
    fs::remove_file(console.paths().raw.with_extension("pos")).unwrap();
    let before = console.log_length();
    console.start();
    console.drain();
    let again = console.logged().len() - 320_000;
    assert!(
        console.log_length() > before && again < 64 * 1024,
        "{again} bytes again"
    );
    assert!(!console.logged().contains(&0));
}

#[test]
fn what_waits_too_long_for_its_log_is_dropped_and_the_end_is_kept() {
    let mut console = Console::new();
    // The log cannot be written: its name belongs to a directory.
    fs::create_dir(console.paths().log).unwrap();
    let line = [vec![b'x'; (1 << 20) - 1], vec![b'\n']].concat();
    let most = usize::try_from(MOST_WAITING).unwrap();
    for _ in 0..=most / line.len() {
        console.write(&line);
    }
    console.write(b"the end\n");
    assert!(console.transfer().batch(Rest::Hold).is_err());
    let used = |console: &Console| {
        let raw = fs::metadata(console.paths().raw).unwrap();
        std::os::unix::fs::MetadataExt::blocks(&raw) * 512
    };
    assert!(used(&console) <= KEPT + (128 << 10), "{}", used(&console));

    fs::remove_dir(console.paths().log).unwrap();
    while console.transfer().batch(Rest::Hold).unwrap().more {}
    let log = fs::read_to_string(console.paths().log).unwrap();
    assert!(log.ends_with(" the end\n"));
}

#[test]
fn a_hole_that_was_made_while_no_daemon_ran_is_skipped() {
    let mut console = Console::new();
    console.write(b"first\n");
    while console.transfer().batch(Rest::Hold).unwrap().more {}
    console.transfer = None;
    console.write(&[b'x'; 128 << 10]);
    console.write(b"\nlast\n");
    let raw = fs::OpenOptions::new().write(true).open(console.paths().raw);
    let hole = nix::fcntl::FallocateFlags::FALLOC_FL_PUNCH_HOLE
        | nix::fcntl::FallocateFlags::FALLOC_FL_KEEP_SIZE;
    nix::fcntl::fallocate(raw.unwrap(), hole, 0, 128 << 10).unwrap();
    console.start();
    while console.transfer().batch(Rest::Hold).unwrap().more {}
    let log = fs::read_to_string(console.paths().log).unwrap();
    assert!(
        log.contains(" first\n") && log.ends_with(" last\n"),
        "{log:?}"
    );
    assert!(!log.contains('\0'));
}
