//! Freezes without a kernel that freezes.

use std::cell::Cell;
use std::os::unix::fs::PermissionsExt as _;

use tempfile::TempDir;

use super::*;

const HOUR: u32 = LONGEST_FREEZE;

fn points(paths: &[&str]) -> Result<Prepared, String> {
    let point = |path: &&str| Point {
        path: (*path).to_owned(),
        file: File::open("/proc").unwrap(),
    };
    Ok(Prepared {
        points: paths.iter().map(point).collect(),
        watchdog: None,
        hooks: Vec::new(),
    })
}

fn frozen() -> Arc<Frozen> {
    Arc::new(Frozen::thawing_by(|_| Ok(())))
}

fn freeze_by(
    frozen: &Arc<Frozen>,
    paths: &[&str],
    freeze: impl FnMut(&Point) -> Result<bool, String>,
) -> Result<usize, String> {
    let begun = frozen.begin(HOUR)?;
    begun.freeze_each(Path::new("/nonexistent/record"), || points(paths), freeze)
}

#[test]
fn a_thaw_does_not_wait_for_a_freeze_and_ends_it() {
    let frozen = frozen();
    let tried = Cell::new(0);
    let outcome = freeze_by(&frozen, &["/a", "/b", "/c"], |_| {
        tried.set(tried.get() + 1);
        // The host reconnects while the second file system is being frozen.
        if tried.get() == 2 {
            assert_eq!(frozen.thaw(), 1);
        }
        Ok(true)
    });
    assert!(outcome.unwrap_err().contains("thawed during"));
    assert_eq!((tried.get(), frozen.thaw()), (2, 0));

    assert_eq!(freeze_by(&frozen, &["/a", "/b", "/c"], |_| Ok(true)), Ok(3));
    let twice = freeze_by(&frozen, &["/a"], |_| Ok(true));
    assert!(twice.unwrap_err().contains("already"));
    assert_eq!(frozen.thaw(), 3);
    assert_eq!(
        freeze_by(&frozen, &["/a", "/b"], |point| Ok(point.path == "/b")),
        Ok(1)
    );
    assert_eq!(frozen.thaw(), 1);
}

/// The host was killed while a slow disk kept a call of the freeze; the next host does not fail for that.
#[test]
fn a_freeze_waits_for_the_call_of_one_that_a_thaw_has_ended() {
    let frozen = frozen();
    let (calls, called) = mpsc::channel();
    let (returns, returned) = mpsc::channel::<()>();
    let first = {
        let frozen = Arc::clone(&frozen);
        thread::spawn(move || {
            freeze_by(&frozen, &["/a"], |_| {
                calls.send(()).unwrap();
                returned.recv().unwrap();
                Ok(true)
            })
        })
    };
    called.recv().unwrap();
    assert!(frozen.begin(HOUR).unwrap_err().contains("already"));
    assert_eq!(frozen.thaw(), 0);
    let begun = frozen.begin(HOUR).expect("the first one has ended");
    returns.send(()).unwrap();
    let record = Path::new("/nonexistent/record");
    let second = begun.freeze_each(record, || points(&["/b"]), |_| Ok(true));
    assert_eq!(second, Ok(1));
    assert!(first.join().unwrap().unwrap_err().contains("thawed during"));
    assert_eq!(frozen.thaw(), 1);
}

/// The host gave up before the agent opened the first file system.
#[test]
fn a_thaw_ends_a_freeze_that_has_only_begun() {
    let frozen = frozen();
    let begun = frozen.begin(HOUR).unwrap();
    assert_eq!(frozen.thaw(), 0);
    let nothing = |_: &Point| -> Result<bool, String> { panic!("it freezes") };
    let outcome = begun.freeze_each(
        Path::new("/nonexistent/record"),
        || points(&["/a"]),
        nothing,
    );
    assert!(outcome.unwrap_err().contains("thawed during"));
    drop(frozen.begin(HOUR).unwrap());
    frozen
        .begin(HOUR)
        .expect("a freeze that was dropped is over");
}

#[test]
fn a_freeze_that_fails_leaves_nothing_frozen() {
    let frozen = frozen();
    let outcome = freeze_by(&frozen, &["/a", "/b"], |point| match point.path.as_str() {
        "/b" => Err("refused".to_owned()),
        _ => Ok(true),
    });
    assert_eq!(outcome.unwrap_err(), "failed to freeze /b: refused");
    assert_eq!(frozen.thaw(), 0);
}

/// Of what another program has thawed nothing was consistent until the end.
#[test]
fn only_what_was_frozen_until_the_thaw_is_counted() {
    let frozen = Arc::new(Frozen::thawing_by(|_| Err(Errno::EINVAL)));
    assert_eq!(freeze_by(&frozen, &["/a", "/b"], |_| Ok(true)), Ok(2));
    assert_eq!(frozen.thaw(), 0);
}

/// Programs that write to a log what they get.
struct Programs(TempDir);

impl Programs {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A program that does this, too.
    fn add(&self, name: &str, more: &str) -> PathBuf {
        let path = self.0.path().join(name);
        let log = self.log();
        let log = log.display();
        let text = format!("#!/bin/sh\necho \"$1 {name}\" >> {log}\n{more}\n");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn log(&self) -> PathBuf {
        self.0.path().join("log")
    }

    fn lines(&self) -> Vec<String> {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }
}

fn freeze_with(
    frozen: &Arc<Frozen>,
    hooks: Vec<PathBuf>,
    freeze: impl FnMut(&Point) -> Result<bool, String>,
) -> Result<usize, String> {
    let prepare = || points(&["/a"]).map(|prepared| Prepared { hooks, ..prepared });
    let begun = frozen.begin(HOUR)?;
    begun.freeze_each(Path::new("/nonexistent/record"), prepare, freeze)
}

/// Waits until all of the last freeze is over: the next one does.
fn await_end(frozen: &Arc<Frozen>) {
    assert_eq!(freeze_by(frozen, &["/z"], |_| Ok(true)), Ok(1));
    assert_eq!(frozen.thaw(), 1);
}

#[test]
fn programs_run_before_the_freeze_and_after_the_thaw() {
    let frozen = frozen();
    let programs = Programs::new();
    let hooks = ["10-a", "20-b"].map(|name| programs.add(name, ""));
    let before = ["freeze 10-a", "freeze 20-b"];
    let outcome = freeze_with(&frozen, hooks.to_vec(), |_| {
        assert_eq!(programs.lines(), before);
        Ok(true)
    });
    assert_eq!(outcome, Ok(1));
    assert_eq!(programs.lines(), before, "it is frozen");
    assert_eq!(frozen.thaw(), 1);
    await_end(&frozen);
    let all = ["freeze 10-a", "freeze 20-b", "thaw 20-b", "thaw 10-a"];
    assert_eq!(programs.lines(), all);
}

#[test]
fn a_program_that_fails_ends_the_freeze_and_gets_the_thaw() {
    let frozen = frozen();
    let programs = Programs::new();
    let hooks = [("10-a", ""), ("20-b", "exit 3"), ("30-c", "")];
    let hooks = hooks.map(|(name, more)| programs.add(name, more));
    let nothing = |_: &Point| -> Result<bool, String> { panic!("it freezes") };
    let failed = freeze_with(&frozen, hooks.to_vec(), nothing).unwrap_err();
    assert!(
        failed.contains("20-b freeze failed: exit status: 3"),
        "{failed}"
    );
    assert_eq!(frozen.thaw(), 0);
    await_end(&frozen);
    let all = ["freeze 10-a", "freeze 20-b", "thaw 20-b", "thaw 10-a"];
    assert_eq!(
        programs.lines(),
        all,
        "one fails again, and the next one runs"
    );
}

/// The host gave up while a program did not end.
#[test]
fn a_thaw_ends_a_program_that_does_not_end() {
    let frozen = frozen();
    let programs = Programs::new();
    let hooks = vec![programs.add("10-a", "[ $1 = thaw ] || exec sleep 1000")];
    let freezing = {
        let frozen = Arc::clone(&frozen);
        thread::spawn(move || freeze_with(&frozen, hooks, |_| Ok(true)))
    };
    while programs.lines().is_empty() {
        assert!(!freezing.is_finished(), "it has ended");
        thread::yield_now();
    }
    assert_eq!(frozen.thaw(), 0);
    let ended = freezing.join().unwrap().unwrap_err();
    assert!(ended.contains("was killed"), "{ended}");
    await_end(&frozen);
    assert_eq!(programs.lines(), ["freeze 10-a", "thaw 10-a"]);
}

/// A disk does not answer to the freeze, and the program holds what it has prepared.
#[test]
fn programs_get_the_thaw_while_a_call_of_the_freeze_hangs() {
    let frozen = frozen();
    let programs = Programs::new();
    let hooks = vec![programs.add("10-a", "")];
    let (calls, called) = mpsc::channel();
    let (returns, returned) = mpsc::channel::<()>();
    let freezing = {
        let frozen = Arc::clone(&frozen);
        thread::spawn(move || {
            freeze_with(&frozen, hooks, |_| {
                calls.send(()).unwrap();
                returned.recv().unwrap();
                Ok(true)
            })
        })
    };
    called.recv().unwrap();
    assert_eq!(frozen.thaw(), 0);
    let begun = Instant::now();
    while programs.lines() != ["freeze 10-a", "thaw 10-a"] {
        assert!(begun.elapsed() < Duration::from_secs(60), "no thaw");
        thread::yield_now();
    }
    returns.send(()).unwrap();
    let ended = freezing.join().unwrap().unwrap_err();
    assert!(ended.contains("thawed during"), "{ended}");
}
