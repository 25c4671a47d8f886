//! An end of a link on which frames are written and read as they are.
//!
//! Invariant: frames arrive in the order in which they are sent, because one thread on one
//! processor sends them; so whatever was to come before a frame has come when the frame has.
//! Failure: every wait has a deadline and panics.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use netns::Namespace;
use nix::sys::socket::{
    AddressFamily, LinkAddr, SockFlag, SockProtocol, SockType, SockaddrLike, bind, socket,
};
use tokio::net::unix::pipe::Receiver;

const DEADLINE: Duration = Duration::from_secs(60);
/// How often a frame is sent until it arrives.
const AGAIN: Duration = Duration::from_millis(100);
/// The sentence after a name, so that no other frame looks like one of ours.
const END: &[u8] = b" says the wire";
/// What the kernel puts before each frame of a tap.
const TAP_HEADER: usize = 10;

/// One end.
pub(crate) struct Wire {
    fd: OwnedFd,
    /// Pipes of tokio serve for any descriptor that can be polled.
    ears: Receiver,
    header: usize,
}

impl Wire {
    /// The guest's end.
    pub(crate) fn tap(tap: OwnedFd) -> Self {
        Self::on(tap, TAP_HEADER)
    }

    /// The end that is the link `name` of `ns`, where all frames are received.
    pub(crate) async fn link(ns: &Namespace, name: &'static str) -> Self {
        let open = move || {
            let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
            let all = SockProtocol::EthAll;
            let fd = socket(AddressFamily::Packet, SockType::Raw, flags, all).unwrap();
            let index = nix::net::if_::if_nametoindex(name).unwrap();
            let mut place = vec![0_u8; size_of::<nix::libc::sockaddr_ll>()];
            place[..2].copy_from_slice(&17_u16.to_ne_bytes());
            place[2..4].copy_from_slice(&3_u16.to_be_bytes());
            place[4..8].copy_from_slice(&index.to_ne_bytes());
            (fd, place)
        };
        let (fd, place) = ns.run(open).await.unwrap();
        let length = u32::try_from(place.len()).unwrap();
        #[allow(unsafe_code)] // nix has no constructor for this address
        // SAFETY: the bytes are a whole `sockaddr_ll`, laid out as the kernel reads it.
        let place = unsafe { LinkAddr::from_raw(place.as_ptr().cast(), Some(length)) }.unwrap();
        bind(fd.as_raw_fd(), &place).unwrap();
        Self::on(fd, 0)
    }

    fn on(fd: OwnedFd, header: usize) -> Self {
        let ears = Receiver::from_file_unchecked(fd.try_clone().unwrap().into()).unwrap();
        Self { fd, ears, header }
    }

    /// Sends one frame.
    pub(crate) fn send(&self, frame: &[u8]) {
        let bytes = [&vec![0; self.header][..], frame].concat();
        match nix::unistd::write(&self.fd, &bytes) {
            Ok(length) => assert_eq!(length, bytes.len()),
            // A tap refuses what is no frame at all.
            Err(error) => assert_eq!(error, nix::errno::Errno::EINVAL),
        }
    }

    /// The next frame.
    pub(crate) async fn next(&self) -> Vec<u8> {
        let read = async {
            let mut bytes = vec![0; 70_000];
            loop {
                self.ears.readable().await.unwrap();
                match self.ears.try_read(&mut bytes) {
                    Ok(length) => return bytes[self.header..length].to_vec(),
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                }
            }
        };
        tokio::time::timeout(DEADLINE, read)
            .await
            .expect("no frame came")
    }

    /// Sends a request until a frame that answers it comes, as every client does: a frame may be
    /// lost.
    pub(crate) async fn answer_to(
        &self,
        request: &[u8],
        answers: impl Fn(&[u8]) -> bool,
    ) -> Vec<u8> {
        let answer = async {
            loop {
                let frame = self.next().await;
                if answers(&frame) {
                    return frame;
                }
            }
        };
        tokio::pin!(answer);
        let request_loop = async {
            loop {
                self.send(request);
                if let Ok(frame) = tokio::time::timeout(AGAIN, &mut answer).await {
                    return frame;
                }
            }
        };
        tokio::time::timeout(DEADLINE, request_loop)
            .await
            .expect("an answer")
    }

    /// Sends a frame that must arrive until it does: the kernel lets a new link, or a new port of a
    /// bridge, forward a moment after its state became up.
    async fn reach(&self, listener: &Self, frame: &[u8]) {
        let beginning = named("a beginning", frame);
        let received =
            async { while name(&listener.next().await).as_deref() != Some("a beginning") {} };
        tokio::pin!(received);
        let sending = async {
            loop {
                self.send(&beginning);
                if tokio::time::timeout(AGAIN, &mut received).await.is_ok() {
                    return;
                }
            }
        };
        let arrived = tokio::time::timeout(DEADLINE, sending).await;
        arrived.expect("a frame arrives");
    }

    /// Sends named frames and then the one that must arrive; the names of those that did.
    pub(crate) async fn send_frames(
        &self,
        listener: &Self,
        frames: &[(&'static str, Vec<u8>)],
        last: &(&'static str, Vec<u8>),
    ) -> BTreeSet<String> {
        self.reach(listener, &last.1).await;
        let end = (last.0, named("the end", &last.1));
        let all: Vec<_> = frames
            .iter()
            .chain([last])
            .map(|(name, frame)| (*name, named(name, frame)))
            .collect();
        // Each processor has a queue of its own.
        let before = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).unwrap();
        let one = {
            let mut set = nix::sched::CpuSet::new();
            let ours = |cpu: &usize| before.is_set(*cpu).unwrap();
            let first = (0..nix::sched::CpuSet::count()).find(ours).unwrap();
            set.set(first).unwrap();
            set
        };
        let pinned = nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &one);
        for (_, frame) in all.iter().chain([&end]) {
            self.send(frame);
        }
        pinned
            .and_then(|()| nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &before))
            .unwrap();
        let mut received = BTreeSet::new();
        loop {
            match name(&listener.next().await) {
                Some(name) if name == "the end" => return received,
                Some(name) if name == "a beginning" => {}
                Some(name) => drop(received.insert(name)),
                None => {}
            }
        }
    }
}

/// The frame with its name behind it, where receivers expect padding.
fn named(name: &str, frame: &[u8]) -> Vec<u8> {
    [frame, &[0, b'<'], name.as_bytes(), END].concat()
}

fn name(frame: &[u8]) -> Option<String> {
    let start = frame.strip_suffix(END)?;
    let at = start.iter().rposition(|b| *b == b'<')?;
    Some(String::from_utf8_lossy(&start[at + 1..]).into_owned())
}
