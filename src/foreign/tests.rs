//! Sources that answer, and one that does not until its test ends.
//!
//! Invariant: the clock is paused; tests move it.
//! Failure: a read that waits for the hanging source never ends.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use tokio::sync::oneshot;

use super::reads::STALL;
use super::*;

const TIME: Duration = Duration::from_secs(3);

type Read = Box<dyn FnOnce() -> u32 + Send>;

/// A source that does not answer before the other end is dropped.
struct Hung {
    _release: mpsc::Sender<()>,
    begun: oneshot::Receiver<()>,
}

fn hung() -> (Hung, Read) {
    let (release, released) = mpsc::channel::<()>();
    let (begin, begun) = oneshot::channel();
    let read = move || {
        begin.send(()).unwrap();
        released.recv().map_or(0, |()| 0)
    };
    let hung = Hung {
        _release: release,
        begun,
    };
    (hung, Box::new(read))
}

fn answering(value: u32) -> Read {
    Box::new(move || value)
}

/// A source behind others; what it returns tells that they have answered.
fn last() -> (oneshot::Receiver<()>, Read) {
    let (reached, at) = oneshot::channel();
    let read = move || {
        reached.send(()).unwrap();
        0
    };
    (at, Box::new(read))
}

#[tokio::test(start_paused = true)]
async fn a_source_that_hangs_keeps_one_thread_and_hides_no_other() {
    let reader = Foreign::default();
    let (hung, read) = hung();
    let (reached, end) = last();
    let sources = vec![(0, answering(7)), (1, read), (2, answering(8)), (9, end)];
    let first = {
        let reader = reader.clone();
        tokio::spawn(async move { reader.read_each(sources, TIME).await })
    };
    hung.begun.await.unwrap();
    tokio::task::yield_now().await;
    tokio::time::advance(STALL).await;
    reached.await.unwrap();
    tokio::time::advance(TIME).await;
    let found = first.await.unwrap();
    assert_eq!((found.get(&0), found.get(&2)), (Some(&7), Some(&8)));
    assert_eq!(found.get(&1), None);
    for _ in 0..2 * MOST {
        let sources = vec![(1, answering(1)), (2, answering(8))];
        assert_eq!(reader.read_each(sources, TIME).await, [(2, 8)].into());
    }
    // The threads of these looks may not have ended yet; that of the source never does.
    let idle = u32::try_from(MOST - 1).unwrap();
    drop(reader.threads.acquire_many(idle).await.unwrap());
    assert_eq!(reader.threads.available_permits(), MOST - 1);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_answers_again_is_read_again() {
    let reader = Foreign::default();
    let (hung, read) = hung();
    let Hung {
        _release: release,
        begun,
    } = hung;
    let first = {
        let reader = reader.clone();
        tokio::spawn(async move { reader.read(1, TIME, read).await })
    };
    begun.await.unwrap();
    tokio::time::advance(2 * TIME).await;
    assert_eq!(first.await.unwrap(), None);
    assert_eq!(reader.read_here(2, || 5), Some(5));
    assert_eq!(reader.read_here(1, || 5), None);
    drop(release);
    assert_eq!(reader.read(1, TIME, || 6).await, Some(6));
    assert_eq!(reader.read_here(1, || 7), Some(7));
}

#[tokio::test(start_paused = true)]
async fn clients_of_one_source_wait_for_each_other() {
    let reader = Foreign::default();
    let active = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..20_u32 {
        let reader = reader.clone();
        let active = Arc::clone(&active);
        let most = Arc::clone(&most);
        clients.spawn(async move {
            let read = move || {
                most.fetch_max(active.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                active.fetch_sub(1, Ordering::SeqCst);
                number
            };
            reader.read("one", TIME, read).await.unwrap()
        });
    }
    assert_eq!(clients.join_all().await.len(), 20);
    assert_eq!(most.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_pipe_without_a_writer_hides_no_other_file() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "12").unwrap();
    let reader = Foreign::default();
    let read = |path: &Path| -> (PathBuf, Box<dyn FnOnce() -> u32 + Send>) {
        let path = path.to_owned();
        let read = {
            let path = path.clone();
            move || u32::from(std::fs::read(path).is_ok())
        };
        (path, Box::new(read))
    };
    let (reached, end) = last();
    let sources = vec![read(&pipe), read(&file), (dir.path().to_owned(), end)];
    let looked = {
        let reader = reader.clone();
        tokio::spawn(async move { reader.read_each(sources, TIME).await })
    };
    tokio::task::yield_now().await;
    tokio::time::advance(STALL).await;
    reached.await.unwrap();
    tokio::time::advance(TIME).await;
    let found = looked.await.unwrap();
    let again = reader.read_each(vec![read(&pipe), read(&file)], TIME).await;
    // Lets the thread go.
    drop(std::fs::OpenOptions::new().write(true).open(&pipe).unwrap());
    assert_eq!(again, [(file.clone(), 1)].into());
    assert_eq!((found.get(&file), found.get(&pipe)), (Some(&1), None));
}

#[tokio::test(start_paused = true)]
async fn what_hangs_takes_one_thread_and_delays_its_own_requests_until_their_deadline() {
    let foreign = Foreign::<String>::default();
    let threads = Arc::<AtomicUsize>::default();
    let (release, held) = mpsc::channel::<()>();
    let count = Arc::clone(&threads);
    let hang = move || {
        count.fetch_add(1, Ordering::SeqCst);
        // An error is what it waits for: the other end no longer exists.
        held.recv().unwrap_err();
    };
    let first = tokio::spawn({
        let foreign = foreign.clone();
        async move { foreign.look("/hung", hang).await }
    });
    while threads.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(foreign.look("/other", || 7).await.unwrap(), 7);

    let count = Arc::clone(&threads);
    let again = tokio::spawn({
        let foreign = foreign.clone();
        async move {
            let work = move || count.fetch_add(1, Ordering::SeqCst);
            foreign.look("/hung", work).await
        }
    });
    tokio::task::yield_now().await;
    tokio::time::advance(DEADLINE).await;
    for refused in [first.await.unwrap().err(), again.await.unwrap().err()] {
        let text = refused.unwrap().to_string();
        assert!(
            text.starts_with("/hung did not answer within 20 s"),
            "{text}"
        );
    }
    assert_eq!(threads.load(Ordering::SeqCst), 1);

    drop(release);
    assert_eq!(foreign.run("/hung", || 8).await.unwrap(), 8);
    assert_eq!(
        threads.load(Ordering::SeqCst),
        1,
        "a caller that left gets no turn"
    );
}

/// Something open: shows which thread it was closed by, and hangs until that is allowed.
struct Opened {
    closed_by: mpsc::Sender<std::thread::ThreadId>,
    allowed: mpsc::Receiver<()>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // An error is what it waits for: the other end no longer exists.
        self.allowed.recv().unwrap_err();
        self.closed_by.send(std::thread::current().id()).unwrap();
    }
}

fn opened() -> (
    Opened,
    mpsc::Sender<()>,
    mpsc::Receiver<std::thread::ThreadId>,
) {
    let (closed_by, closed) = mpsc::channel();
    let (allow, allowed) = mpsc::channel();
    (Opened { closed_by, allowed }, allow, closed)
}

#[tokio::test]
async fn what_is_opened_for_a_caller_that_left_is_closed_by_a_thread_before_later_work() {
    let foreign = Foreign::<String>::default();
    let (opened, allow, closed) = opened();
    let (answer, answered) = mpsc::channel::<()>();
    let (begin, begun) = oneshot::channel();
    let open = move || {
        begin.send(()).unwrap();
        answered.recv().unwrap_err();
        opened
    };
    let caller = tokio::spawn({
        let foreign = foreign.clone();
        async move { drop(foreign.run("/volume", open).await) }
    });
    begun.await.unwrap();
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    drop(answer);
    let later = tokio::spawn({
        let foreign = foreign.clone();
        async move { foreign.run("/volume", move || closed.try_recv()).await }
    });
    assert_eq!(foreign.run("/other", || 7).await.unwrap(), 7);
    drop(allow);
    let by = later.await.unwrap().unwrap().expect("it is closed before");
    assert_ne!(by, std::thread::current().id());
}

#[tokio::test]
async fn what_is_open_is_closed_by_a_thread_of_its_owner_whatever_task_drops_it() {
    let foreign = Foreign::default();
    let (opened, allow, closed) = opened();
    let first = foreign.keep("/volume", Mutex::new(opened));
    let second = first.clone();
    drop(first);
    let is_there = second.look(|opened| opened.lock().is_ok()).await;
    assert!(is_there.unwrap(), "a clone keeps it");
    assert!(closed.try_recv().is_err());
    drop(second);
    assert_eq!(foreign.look("/other", || 7).await.unwrap(), 7);
    drop(allow);
    let by = foreign.look("/volume", move || closed.try_recv()).await;
    let by = by.unwrap().expect("it is closed before later work");
    assert_ne!(by, std::thread::current().id());
}
