//! The journal on a real file system.
//!
//! Invariant: each test has a directory of its own.
//! Failure: an entry that is read otherwise than it was written, or a file that is lost.

use super::*;
use std::os::unix::fs::PermissionsExt;

fn entry(id: &str) -> Entry {
    let request = AddRequest {
        id: id.to_owned(),
        ..AddRequest::default()
    };
    Entry::new(request, "/run/netns/x".into())
}

fn request(cgroup: &str) -> StartRequest {
    StartRequest {
        id: String::new(),
        cgroup_parent: cgroup.to_owned(),
        memory_bytes: 7,
        uid: None,
    }
}

#[tokio::test]
async fn an_entry_is_read_as_it_was_written_and_root_alone_may_read_it() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(&dir.path().join("j")).unwrap();
    let mut up = entry("b");
    up.phase = Phase::Up;
    let now = Duration::from_secs(9);
    up.start = Some(Start::new("t".to_owned(), request("/pod"), now));
    journal.put(&entry("b")).await.unwrap();
    journal.put(&up).await.unwrap();
    journal.put(&entry("a")).await.unwrap();
    let mode = std::fs::metadata(journal.path("b"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let loaded = journal.load().unwrap();
    assert_eq!(loaded.len(), 2);
    assert!(matches!(&loaded[1], (id, Loaded::Entry(entry)) if id == "b" && **entry == up));
    journal.remove("b").await.unwrap();
    journal.remove("b").await.unwrap();
    assert_eq!(journal.load().unwrap().len(), 1);
}

#[tokio::test]
async fn damage_is_reported_with_the_sandbox_and_halves_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    std::fs::write(dir.path().join("a.json"), "{\"version\":1,").unwrap();
    std::fs::write(dir.path().join("b.part"), "{").unwrap();
    let loaded = journal.load().unwrap();
    assert!(
        matches!(&loaded[..], [(id, Loaded::Broken(_))] if id == "a"),
        "{loaded:?}"
    );
    assert!(!dir.path().join("b.part").exists());
}

#[test]
fn two_programs_do_not_share_a_journal() {
    let dir = tempfile::tempdir().unwrap();
    let first = Journal::open(dir.path()).unwrap();
    assert!(matches!(Journal::open(dir.path()), Err(Error::Lock { .. })));
    drop(first);
    Journal::open(dir.path()).unwrap();
}

#[test]
fn a_start_expires_after_a_day_of_the_nodes_own_time() {
    let at = Duration::from_secs;
    let start = Start::new(String::new(), request(""), at(1000));
    assert!(!start.is_expired(at(1000)));
    let day = TOKEN_LIFE.as_secs();
    assert!(!start.is_expired(at(999 + day)));
    assert!(start.is_expired(at(1000 + day)));
    assert!(start.is_expired(at(5)), "of another boot");
    let mut older = start;
    older.expires = 1_790_000_000;
    assert!(older.is_expired(at(1000)), "by the wall clock");
}

#[tokio::test]
async fn a_journal_of_a_later_version_is_refused_before_anything_changes() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    journal.put(&entry("a")).await.unwrap();
    journal.put(&entry("b")).await.unwrap();
    drop(journal);
    let text = std::fs::read_to_string(dir.path().join("b.json")).unwrap();
    let later = text.replace("\"version\": 1,", "\"version\": 2, \"more\": [],");
    std::fs::write(dir.path().join("b.json"), &later).unwrap();
    std::fs::write(dir.path().join("c.part"), "{").unwrap();
    std::fs::remove_file(dir.path().join(LOCK)).unwrap();
    let refused = Journal::open(dir.path()).unwrap_err();
    assert!(matches!(&refused, Error::Later { found: 2, path } if path.ends_with("b.json")));
    assert!(refused.to_string().contains("start that version again"));
    let mut names: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["a.json", "b.json", "c.part"]);
    assert_eq!(
        std::fs::read_to_string(dir.path().join("b.json")).unwrap(),
        later
    );
}
