//! Whether kubelet is well, and whether it is behind the proxy.
//!
//! Invariant: what counts is what kubelet and the kernel say now: kubelet serves its health page only
//! after its runtime has answered, and the kernel lists who is connected to the proxy.
//! Failure: what was seen last, when the time is over.

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
        Ok(text.lines().any(is_connection))
    }
}

/// Whether a line is that of a connection which the proxy has accepted.
fn is_connection(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    matches!(words.as_slice(), [_, _, _, _, _, state, _, path] if *state == CONNECTED && *path == SOCKET)
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

    #[rstest]
    #[case::connected(
        "ffff9c: 00000003 00000000 00000000 0001 03 4711 /run/vmlet/criproxy.sock",
        true
    )]
    #[case::listening(
        "ffff9c: 00000002 00000000 00010000 0001 01 4711 /run/vmlet/criproxy.sock",
        false
    )]
    #[case::other(
        "ffff9c: 00000003 00000000 00000000 0001 03 4711 /run/vmlet/vmlet.sock",
        false
    )]
    #[case::client("ffff9c: 00000003 00000000 00000000 0001 03 4711", false)]
    #[case::head("Num       RefCount Protocol Flags    Type St Inode Path", false)]
    fn a_connection_has_the_path_of_its_listener(#[case] line: &str, #[case] expected: bool) {
        assert_eq!(is_connection(line), expected);
    }

    /// The kernel's own list, of this process.
    #[test]
    fn the_kernel_lists_an_accepted_connection_with_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let listed = || {
            let text = std::fs::read_to_string("/proc/self/net/unix").unwrap();
            let text = text.replace(path.to_str().unwrap(), SOCKET);
            text.lines().filter(|line| is_connection(line)).count()
        };
        let before = listed();
        let client = std::os::unix::net::UnixStream::connect(&path).unwrap();
        let accepted = listener.accept().unwrap();
        assert_eq!(listed(), before + 1);
        drop((client, accepted));
        assert_eq!(listed(), before);
    }
}
