//! Followers beside a writer on another thread.
//!
//! Invariant: what a follower has read is the beginning of the file, or it has failed.
//! Failure: none expected.

use std::path::Path;

use tempfile::TempDir;
use tokio::task::{JoinHandle, spawn_blocking};

use super::super::{Note, Partial, Validators};
use super::*;

fn note() -> Note {
    Note::new("h/a".into(), Validators::default(), None)
}

fn open(dir: &TempDir) -> Partial {
    let mut partial = Partial::open(dir.path(), "k", Path::new("/none")).unwrap();
    partial.restart(note()).unwrap();
    partial
}

/// Reads to the end in pieces of three bytes.
fn reading(mut follower: Follower) -> JoinHandle<io::Result<Vec<u8>>> {
    spawn_blocking(move || {
        let mut all = Vec::new();
        let mut piece = [0; 3];
        loop {
            match follower.read(&mut piece)? {
                0 => return Ok(all),
                n => all.extend_from_slice(&piece[..n]),
            }
        }
    })
}

#[tokio::test]
async fn a_follower_reads_what_is_there_and_what_comes() {
    let dir = tempfile::tempdir().unwrap();
    let mut partial = open(&dir);
    partial.append(b"ab").unwrap();
    let follower = partial.follow().unwrap();
    let reading = reading(follower);
    for byte in *b"cdefgh" {
        partial.append(&[byte]).unwrap();
        tokio::task::yield_now().await;
    }
    partial.complete();
    // Not even the end of its writer takes bytes of a complete file away.
    drop(partial);
    assert_eq!(reading.await.unwrap().unwrap(), b"abcdefgh");
}

#[tokio::test]
async fn a_piece_is_short_only_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut partial = open(&dir);
    let mut follower = partial.follow().unwrap();
    partial.append(b"abcd").unwrap();
    let reading = spawn_blocking(move || {
        let mut piece = [0; 3];
        let sizes = [(); 3].map(|()| follower.read(&mut piece).unwrap());
        (sizes, follower.read(&mut []).unwrap())
    });
    partial.append(b"efg").unwrap();
    partial.complete();
    assert_eq!(reading.await.unwrap(), ([3, 3, 1], 0));
}

#[tokio::test]
async fn a_download_that_ends_early_fails_its_follower() {
    let dir = tempfile::tempdir().unwrap();
    let mut partial = open(&dir);
    partial.append(b"abcd").unwrap();
    let mut follower = partial.follow().unwrap();
    let waiting = partial.follow().unwrap();
    let late = partial.follow().unwrap();
    let waiting = reading(waiting);
    drop(partial);
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the download ended early");
    let error = reading(late).await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the download ended early");
    assert!(!follower.begun().await);
}

#[tokio::test]
async fn a_new_start_is_followed_from_its_first_byte_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let mut partial = open(&dir);
    partial.append(b"abc").unwrap();
    let mut begun = partial.follow().unwrap();
    let fresh = partial.follow().unwrap();
    let begun = spawn_blocking(move || {
        let first = begun.read(&mut [0; 3]).unwrap();
        (first, begun)
    });
    let (first, begun) = begun.await.unwrap();
    assert_eq!(first, 3);
    partial.restart(note()).unwrap();
    partial.append(b"xyzabc").unwrap();
    partial.complete();
    let error = reading(begun).await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the download started again");
    assert_eq!(reading(fresh).await.unwrap().unwrap(), b"xyzabc");
}

#[tokio::test]
async fn a_download_has_begun_when_bytes_come_that_were_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let mut partial = open(&dir);
    partial.append(b"abc").unwrap();
    let has_begun = |partial: &Partial, earlier: &Follower| {
        partial.extent.borrow().is_more_than(&earlier.first)
    };
    let mut follower = partial.follow().unwrap();
    assert!(!has_begun(&partial, &follower));
    partial.restart(note()).unwrap();
    assert!(!has_begun(&partial, &follower));
    partial.append(b"x").unwrap();
    assert!(has_begun(&partial, &follower) && follower.begun().await);
    let mut follower = partial.follow().unwrap();
    partial.append(b"y").unwrap();
    assert!(has_begun(&partial, &follower) && follower.begun().await);
    let mut follower = partial.follow().unwrap();
    assert!(!has_begun(&partial, &follower));
    partial.complete();
    assert!(follower.begun().await);
}
