//! Many sessions at once, with clients that disconnect at any byte, or read slowly.
//!
//! Invariant: the server has a process of its own, so that descriptors, tasks and memory are those
//! of the sessions, besides the clients; so has each guest, in which the real `vmlet-guest` runs
//! the commands. `VMLET_TEST_LONG` makes ten thousand sessions of one thousand.
//! Failure: the figures at the beginning and at the end.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::AsyncWriteExt;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::*;
use clients::{spdy, websocket};

mod clients;

/// Set in the process that runs the sessions.
const ITSELF: &str = "VMLET_TEST_SESSIONS";
/// Set to its socket in the process of a guest.
const GUEST: &str = "VMLET_TEST_GUEST_SOCKET";
const NAME: &str = "streaming::tests::load::sessions_that_are_cut_or_read_slowly_leave_nothing";
/// Sessions at a time.
const AT_ONCE: usize = 200;
/// A guest has at most 64 sessions at a time, and for a moment also those that were just cut.
const MACHINES: usize = 5;
/// Output of a command that writes much.
const MUCH: usize = 600_000;
/// Growth of memory that is allowed after the first quarter of the sessions, in KiB: for 250 and
/// for 2,500 sessions, of which only the latter have reached the most that is allocated at a time.
const GROWTH: [usize; 2] = [96 * 1024, 24 * 1024];
/// What a client keeps of the beginning and of the end of the output.
const KEPT: usize = 4096;

#[test]
fn sessions_that_are_cut_or_read_slowly_leave_nothing() {
    if let Some(socket) = std::env::var_os(GUEST) {
        return serve(socket.as_ref());
    }
    if let Ok(sessions) = std::env::var(ITSELF) {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
        return runtime.block_on(many(sessions.parse().unwrap()));
    }
    let is_long = std::env::var_os("VMLET_TEST_LONG").is_some();
    let sessions: usize = if is_long { 10_000 } else { 1000 };
    let output = itself(ITSELF, sessions.to_string().as_ref())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    // Indented: a line that begins with a result would be taken for that of this process.
    for line in printed.lines() {
        println!("    {line}");
    }
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}\n{complaints}");
    assert!(printed.contains("1 passed"), "{printed}");
}

/// This test in another process.
fn itself(variable: &str, value: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([NAME, "--exact", "--nocapture"])
        .env(variable, value);
    command
}

/// The process of a guest: until its input ends.
fn serve(socket: &Path) {
    let listener = UnixListener::bind(socket).unwrap();
    println!("ready");
    std::io::stdout().flush().unwrap();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let port = ::guest::Port::of_socket(connection.unwrap()).unwrap();
            // It serves until the daemon disconnects.
            let _ = ::guest::serve(&port, &crate::testkit::no_places());
        }
    });
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
}

/// A guest, which ends with the value.
struct Guest {
    child: Child,
    /// The guest may print until its end.
    _output: BufReader<ChildStdout>,
}

impl Guest {
    fn start(server: &Server, machine: &ContainerId) -> Self {
        let socket = server.node.containers.paths().guest_socket(machine);
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let mut child = itself(GUEST, &socket)
            .env_remove(ITSELF)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while line.trim() != "ready" {
            line.clear();
            assert_ne!(lines.read_line(&mut line).unwrap(), 0);
        }
        Self {
            child,
            _output: lines,
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

async fn many(sessions: usize) {
    service::open_files::raise().unwrap();
    let server = Server::start().await;
    let mut machines = vec![server.machine.clone()];
    for number in 1..MACHINES {
        machines.push(server.another(&format!("pod-{number}")).await);
    }
    let guests: Vec<_> = machines
        .iter()
        .map(|machine| Guest::start(&server, machine))
        .collect();
    for machine in &machines {
        assert_eq!(server.run(machine, &["true"]).await, Ok(0));
    }
    let load = Arc::new(Load {
        server,
        machines,
        places: [const { Semaphore::const_new(AT_ONCE / MACHINES) }; MACHINES],
        guests,
        complete: AtomicUsize::new(0),
    });
    let begin = std::time::Instant::now();
    // What is allocated once is allocated then.
    load.sessions(0..sessions / 4).await;
    let first = load.settled(None).await;
    println!("after {} sessions: {first:?}", sessions / 4);
    load.sessions(sessions / 4..sessions).await;
    let last = load.settled(Some(first)).await;
    println!("after {sessions} sessions: {last:?}");
    let complete = load.complete.load(Ordering::Relaxed);
    println!(
        "{complete} ran to their end, the others were cut; {:?}",
        begin.elapsed()
    );
    assert!(complete > sessions / 3, "{complete} of {sessions}");
    let growth = GROWTH[usize::from(sessions >= 10_000)];
    assert!(last.kib < first.kib + growth, "{first:?} {last:?}");
}

/// What sessions may leave behind.
#[derive(Debug, Clone, Copy)]
struct Figures {
    descriptors: usize,
    tasks: usize,
    kib: usize,
    descriptors_of_guests: usize,
    processes_in_guests: usize,
}

struct Load {
    server: Server,
    machines: Vec<ContainerId>,
    /// Sessions that each machine may still get.
    places: [Semaphore; MACHINES],
    guests: Vec<Guest>,
    complete: AtomicUsize,
}

/// What the client of a session does.
#[derive(Debug, Clone, Copy)]
enum Conduct {
    /// Sends and reads everything.
    Completes { slowly: bool },
    /// Disconnects after it has sent so many bytes.
    CutsWriting(usize),
    /// Disconnects after it has read so many bytes.
    CutsReading(usize),
}

impl Load {
    async fn sessions(self: &Arc<Self>, numbers: std::ops::Range<usize>) {
        let mut running = JoinSet::new();
        for number in numbers {
            while running.len() >= AT_ONCE {
                running.join_next().await.unwrap().unwrap();
            }
            let load = Arc::clone(self);
            running.spawn(async move { load.session(number).await });
        }
        while let Some(ended) = running.join_next().await {
            ended.unwrap();
        }
    }

    fn figures(&self) -> Figures {
        let count = |path: String| std::fs::read_dir(path).unwrap().count();
        let mut processes = 0;
        let mut descriptors = 0;
        for Guest { child, .. } in &self.guests {
            let folder = format!("/proc/{}", child.id());
            descriptors += count(format!("{folder}/fd"));
            for thread in std::fs::read_dir(format!("{folder}/task"))
                .unwrap()
                .flatten()
            {
                let children = std::fs::read_to_string(thread.path().join("children"));
                processes += children.unwrap_or_default().split_whitespace().count();
            }
        }
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = resident.unwrap().trim().trim_end_matches(" kB");
        Figures {
            descriptors: count("/proc/self/fd".to_owned()),
            tasks: tokio::runtime::Handle::current()
                .metrics()
                .num_alive_tasks(),
            kib: kib.parse().unwrap(),
            descriptors_of_guests: descriptors,
            processes_in_guests: processes,
        }
    }

    /// The figures, once no session is left; the same as before.
    async fn settled(&self, before: Option<Figures>) -> Figures {
        let mut last = self.figures();
        let level = |all: &Figures| {
            let Figures {
                descriptors,
                tasks,
                descriptors_of_guests,
                ..
            } = *all;
            [descriptors, tasks, descriptors_of_guests]
        };
        let settled = async {
            loop {
                // The guests see the end of a session after the server.
                for machine in &self.machines {
                    assert_eq!(self.server.run(machine, &["true"]).await, Ok(0));
                }
                let before_last = std::mem::replace(&mut last, self.figures());
                let is_level = match before {
                    Some(before) => level(&before)
                        .iter()
                        .zip(level(&last))
                        .all(|(b, l)| l <= *b),
                    None => level(&before_last) == level(&last),
                };
                if last.processes_in_guests == 0 && is_level {
                    return;
                }
            }
        };
        let ended = tokio::time::timeout(SOON, settled).await;
        assert!(ended.is_ok(), "before {before:?}, now {last:?}");
        last
    }

    async fn session(&self, number: usize) {
        let _place = self.places[number % MACHINES].acquire().await.unwrap();
        let mut random = fastrand::Rng::with_seed(number as u64);
        let is_spdy = random.bool();
        let output = if random.u8(..) < 64 { MUCH } else { 100 };
        let script = format!("cat; head -c {output} /dev/zero");
        let machine = &self.machines[number % MACHINES];
        let target = Target::Exec(ExecTarget {
            container: machine.clone(),
            command: ["sh", "-c", &script].map(str::to_owned).into(),
            streams: Wanted {
                stdin: true,
                stdout: true,
                stderr: true,
                resize: false,
            },
        });
        let url = self.server.url(machine, target);
        let path = url.splitn(4, '/').nth(3).unwrap();
        let request = if is_spdy { spdy(path) } else { websocket(path) };
        let conduct = match random.u8(..4) {
            0 => Conduct::CutsWriting(random.usize(..request.len())),
            1 => Conduct::CutsReading(random.usize(..output)),
            _ => Conduct::Completes {
                slowly: random.u8(..8) == 0,
            },
        };
        let mut transport = self.server.connect().await;
        let (send, read, piece) = match conduct {
            Conduct::CutsWriting(length) => (length, 0, 1),
            Conduct::CutsReading(length) => (request.len(), length, 4096),
            Conduct::Completes { slowly } => (
                request.len(),
                usize::MAX,
                if slowly { 1021 } else { 16 << 10 },
            ),
        };
        transport.write_all(&request[..send]).await.unwrap();
        let mut received = 0;
        let mut head = Vec::new();
        let mut tail = VecDeque::new();
        let mut failure = None;
        let mut buffer = vec![0; piece];
        let reading = async {
            while received < read {
                let length = match transport.read(&mut buffer).await {
                    // A server that has seen the end of its client's input may reset it.
                    Ok(0) => break,
                    Err(error) => {
                        failure = Some(error);
                        break;
                    }
                    Ok(length) => length,
                };
                received += length;
                head.extend_from_slice(&buffer[..length.min(KEPT.saturating_sub(head.len()))]);
                tail.extend(&buffer[..length]);
                tail.drain(..tail.len().saturating_sub(KEPT));
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(10 * SOON, reading)
            .await
            .expect("the output");
        drop(transport);
        if let Conduct::Completes { .. } = conduct {
            let head = String::from_utf8_lossy(&head);
            let tail = Vec::from(tail);
            let tail = String::from_utf8_lossy(&tail);
            let is_whole = head.contains("a line of input")
                && tail.contains(r#""status":"Success""#)
                && received > output;
            let last = tail.trim_matches('\0');
            assert!(
                is_whole,
                "{number}: SPDY {is_spdy}, {conduct:?}, {received} bytes of {output}, {failure:?}: \
                 {head:.200} … {last:?}"
            );
            self.complete.fetch_add(1, Ordering::Relaxed);
        }
        if received == 0 {
            // A request that never came leaves its token, of which there are so many.
            let mut transport = self.server.connect().await;
            let request = format!("GET /{path} HTTP/1.1\r\nHost: x\r\n\r\n");
            transport.write_all(request.as_bytes()).await.unwrap();
            let mut answer = [0; 12];
            soon("an answer", transport.read_exact(&mut answer))
                .await
                .unwrap();
            assert!(answer.starts_with(b"HTTP/1.1 40"), "{answer:?}");
        }
    }
}
