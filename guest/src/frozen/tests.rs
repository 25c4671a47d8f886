//! Freezes without a kernel that freezes.

use std::cell::Cell;

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
