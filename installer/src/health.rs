//! Whether kubelet is well, and whether it is behind the proxy.
//!
//! Invariant: what counts is what kubelet and the kernel say now: kubelet serves its health page only
//! after its runtime has answered, and the kernel lists who is connected to the proxy.
//! Failure: what was seen last, when the time is over.

use std::ffi::OsStr;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::cri;
use crate::endpoint::SOCKET;
use crate::plan::Event;
use crate::root::Root;

/// Longest wait for one answer of the health page.
const ANSWER: Duration = Duration::from_secs(2);

const PAUSE: Duration = Duration::from_millis(200);

/// The sockets of the node, wherever this program runs.
const SOCKETS: &str = "/proc/1/net/unix";

/// State of a socket that is connected, in the list of the kernel.
const CONNECTED: &str = "03";

/// The proxy's program, as the kernel names its process.
const PROXY: &str = "vmlet-criproxy";

/// How a node is looked at.
#[derive(Debug)]
pub(crate) struct Health {
    pub(crate) root: Root,
    pub(crate) healthz: SocketAddr,
}

impl Health {
    /// Waits for an event.
    pub(crate) fn wait(&self, event: Event, timeout: Duration) -> Result<()> {
        let begun = Instant::now();
        loop {
            let left = timeout.saturating_sub(begun.elapsed());
            match self.look(event, left.max(PAUSE)) {
                Ok(()) => return Ok(()),
                Err(error) if left.is_zero() => {
                    let waited = format!("failed to wait until {event}, for {timeout:?}");
                    return Err(error).context(waited);
                }
                Err(_) => pause(PAUSE),
            }
        }
    }

    fn look(&self, event: Event, left: Duration) -> Result<()> {
        match event {
            Event::KubeletHealthy => self.kubelet(),
            Event::ProxyAnswers => {
                cri::version(&self.root.place(Path::new(SOCKET))?, left).map(drop)
            }
            Event::KubeletBehindProxy => {
                self.kubelet()?;
                ensure!(
                    self.is_proxy_used()?,
                    "kubelet is healthy, but not connected to {SOCKET}: another setting of it names the runtime"
                );
                Ok(())
            }
            Event::ProxyUnused => {
                ensure!(!self.is_proxy_used()?, "{SOCKET} is in use");
                Ok(())
            }
        }
    }

    /// Fails unless kubelet says that it is well.
    pub(crate) fn kubelet(&self) -> Result<()> {
        let address = self.healthz;
        let answer = self.page();
        let answer = answer.with_context(|| format!("failed to reach kubelet at {address}"))?;
        let mut words = answer.split_whitespace().skip(1);
        match words.next() {
            Some("200") => Ok(()),
            _ => bail!(
                "kubelet at {address} is not healthy: {}",
                answer.lines().last().unwrap_or_default()
            ),
        }
    }

    fn page(&self) -> Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.healthz, ANSWER)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_write_timeout(Some(ANSWER))?;
        stream.write_all(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.take(64 << 10).read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    /// Whether a program is connected to the proxy.
    pub(crate) fn is_proxy_used(&self) -> Result<bool> {
        let Some(text) = self.root.proc_text(Path::new(SOCKETS))? else {
            bail!("failed to find {SOCKETS}: the node's /proc is needed");
        };
        Ok(text
            .lines()
            .filter_map(accepted)
            .any(|path| self.is_proxys(path)))
    }

    /// Whether a path that the kernel lists is that of the proxy's socket. The kernel keeps the name that a
    /// socket had when it was bound, and the proxy binds `.PID` beside the socket before it renames that.
    fn is_proxys(&self, path: &Path) -> bool {
        let socket = Path::new(SOCKET);
        if path == socket {
            return true;
        }
        let name = path.file_name().and_then(OsStr::to_str);
        let process = name.and_then(|name| name.strip_prefix('.')?.parse::<u32>().ok());
        let comm = |process| {
            let place = format!("/proc/{process}/comm");
            self.root.proc_text(Path::new(&place)).ok().flatten()
        };
        path.parent() == socket.parent()
            && process
                .and_then(comm)
                .is_some_and(|comm| comm.trim_end() == PROXY)
    }
}

/// The path of a line if that is a connection which a program has accepted.
fn accepted(line: &str) -> Option<&Path> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        [_, _, _, _, _, state, _, path] if *state == CONNECTED => Some(Path::new(*path)),
        _ => None,
    }
}

/// Waits before the next look.
#[expect(
    clippy::disallowed_methods,
    reason = "health pages, lists of the kernel and the end of a program with a deadline announce no change"
)]
pub(crate) fn pause(pause: Duration) {
    std::thread::sleep(pause);
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn health(root: &Path) -> Health {
        Health {
            root: Root::new(root).unwrap(),
            healthz: ([127, 0, 0, 1], 1).into(),
        }
    }

    #[rstest]
    #[case::of_the_proxy("0001 03 4711 /run/vmlet/.4711", true)]
    #[case::by_its_name("0001 03 4711 /run/vmlet/criproxy.sock", true)]
    #[case::listening("0001 01 4711 /run/vmlet/.4711", false)]
    #[case::of_the_proxys_status("0001 03 4711 /run/vmlet/proxy/.4711", false)]
    #[case::of_the_daemon("0001 03 4711 /run/vmlet/.4712", false)]
    #[case::of_a_process_that_is_gone("0001 03 4711 /run/vmlet/.4713", false)]
    #[case::by_another_name("0001 03 4711 /run/vmlet/vmlet.sock", false)]
    #[case::client("0001 03 4711", false)]
    fn a_connection_has_the_path_that_its_listener_was_bound_to(
        #[case] line: &str,
        #[case] expected: bool,
    ) {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in [
            (
                "1/net/unix",
                format!(
                    "Num       RefCount Protocol Flags    Type St Inode Path\nffff9c: 00000003 00000000 00000000 {line}\n"
                ),
            ),
            ("4711/comm", format!("{PROXY}\n")),
            ("4712/comm", "vmlet\n".to_owned()),
        ] {
            let path = folder.path().join("proc").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        assert_eq!(
            health(folder.path()).is_proxy_used().unwrap(),
            expected,
            "{line}"
        );
    }

    /// The kernel's own list, of a socket that is made as the proxy makes it.
    #[tokio::test]
    async fn the_kernel_lists_a_connection_to_the_proxys_kind_of_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("criproxy.sock");
        let listener = service::listener::Listener::bind(&path).await.unwrap();
        let listed = || {
            let text = std::fs::read_to_string("/proc/self/net/unix").unwrap();
            let bound = folder.path().join(format!(".{}", std::process::id()));
            text.lines()
                .filter_map(accepted)
                .filter(|path| *path == bound)
                .count()
        };
        assert_eq!(listed(), 0);
        let client = std::os::unix::net::UnixStream::connect(&path).unwrap();
        let served = listener.accept().await;
        assert_eq!(listed(), 1);
        drop((client, served));
        assert_eq!(listed(), 0);
    }
}
