//! A file system in this process, which passes a directory on: the library of virtiofsd, with
//! `/dev/fuse` in the place of a machine's queue.
//!
//! Invariant: one request at a time; an observer sees each before it is handled, and its reply
//! before the kernel does.
//! Failure: the session ends, and with it the connection: accesses fail with `ENOTCONN`.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use vhost_user_backend::bitmap::BitmapMmapRegion;
use virtio_queue::{DescriptorChain, Queue, QueueOwnedT as _, QueueT as _};
use virtiofsd::descriptor_utils::{Reader, Writer};
pub use virtiofsd::fuse::Opcode;
use virtiofsd::passthrough::{CachePolicy, Config, PassthroughFs};
use virtiofsd::server::Server;
use vm_memory::{Bytes as _, GuestAddress, GuestMemoryMmap};

/// The largest message: data and header.
const ROOM: usize = (1 << 20) + 4096;
/// Places in the memory of the queue: table of two descriptors, ring, request, reply.
const TABLE: GuestAddress = GuestAddress(0);
const RING: GuestAddress = GuestAddress(0x100);
const REQUEST: GuestAddress = GuestAddress(0x1000);
const REPLY: GuestAddress = GuestAddress(0x20_0000);
const MEMORY: usize = 0x40_0000;
/// Of a reply.
pub(crate) const HEADER: usize = 16;
/// Where a request has its kind, and that for a read its length.
const OPCODE: usize = 4;
const READ_SIZE: usize = 56;
/// Marks of a descriptor: another one follows, or it is for the reply.
const NEXT: u16 = 1;
const WRITABLE: u16 = 2;

type Memory = GuestMemoryMmap<BitmapMmapRegion>;

/// Sees what the kernel requests. An error ends the session.
pub trait Observer {
    /// A request that was read, and not handled yet.
    fn request(&mut self, request: &[u8]) -> Result<()>;

    /// A request that was handled, and the reply to it.
    fn reply(&mut self, request: &[u8], reply: &[u8]) -> Result<()>;
}

/// A mounted file system that waits for requests.
pub struct Session<O> {
    server: Server<PassthroughFs>,
    memory: Memory,
    device: File,
    observer: O,
}

impl<O> std::fmt::Debug for Session<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl<O: Observer> Session<O> {
    /// Mounts the directory `behind` at `place`. Accesses wait until [`Self::run`].
    ///
    /// # Errors
    ///
    /// No directory, no `/dev/fuse`, or no right to mount.
    pub fn mount(behind: &Path, place: &Path, observer: O) -> Result<Self> {
        let config = Config {
            root_dir: behind.display().to_string(),
            // Every access reaches this process.
            entry_timeout: Duration::ZERO,
            attr_timeout: Duration::ZERO,
            cache_policy: CachePolicy::Never,
            readdirplus: false,
            ..Config::default()
        };
        let files = PassthroughFs::new(config).context("open the directory")?;
        let memory = Memory::from_ranges(&[(GuestAddress(0), MEMORY)]);
        Ok(Self {
            server: Server::new(files),
            memory: memory.map_err(|error| anyhow!("memory of the queue: {error}"))?,
            device: connect(place)?,
            observer,
        })
    }

    /// Replies until the end of the mount. Blocks.
    ///
    /// # Errors
    ///
    /// The observer's, or a message that cannot be handled.
    pub fn run(mut self) -> Result<()> {
        let mut message = vec![0; ROOM];
        let mut answer = vec![0; ROOM];
        loop {
            let length = match (&self.device).read(&mut message) {
                Ok(length) => length,
                Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                    Some(Errno::ENODEV) => return Ok(()),
                    // The caller has left before the request was read.
                    Some(Errno::ENOENT | Errno::EINTR | Errno::EAGAIN) => continue,
                    _ => return Err(error).context("read a request"),
                },
            };
            let request = message.get(..length).context("a long request")?;
            self.observer.request(request)?;
            let length = self.handle(request)?;
            if length == 0 {
                continue;
            }
            let reply = answer.get_mut(..length).context("a long reply")?;
            self.memory.read_slice(reply, REPLY)?;
            self.observer.reply(request, reply)?;
            match (&self.device).write(reply) {
                // The caller has left.
                Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => {}
                written => drop(written.context("write a reply")?),
            }
        }
    }

    /// The length of the reply.
    fn handle(&self, request: &[u8]) -> Result<usize> {
        self.memory.write_slice(request, REQUEST)?;
        let chain = self.chain(request.len(), room(request)?)?;
        let reader = Reader::new(&self.memory, chain.clone()).map_err(|e| anyhow!("{e}"))?;
        let writer = Writer::new(&self.memory, chain).map_err(|e| anyhow!("{e}"))?;
        let handled = self.server.handle_message(reader, writer, None::<&mut ()>);
        handled.map_err(|error| anyhow!("handle a request: {error}"))
    }

    /// The request and the room for its reply, as a queue of a machine would have them.
    fn chain(&self, length: usize, room: usize) -> Result<DescriptorChain<&Memory>> {
        let first = descriptor(REQUEST, length, NEXT)?;
        let second = descriptor(REPLY, room, WRITABLE)?;
        self.memory.write_slice(&[first, second].concat(), TABLE)?;
        // No flags, one chain, which begins with the first descriptor.
        self.memory.write_slice(&[0, 0, 1, 0, 0, 0], RING)?;
        let mut queue = Queue::new(2)?;
        queue.try_set_desc_table_address(TABLE)?;
        queue.try_set_avail_ring_address(RING)?;
        queue.set_ready(true);
        queue.iter(&self.memory)?.next().context("no request")
    }
}

/// Whether a request is of this kind.
pub fn is(request: &[u8], kind: Opcode) -> bool {
    word(request, OPCODE).is_ok_and(|word| word == kind as u32)
}

/// Eight bytes of a message.
pub(crate) fn long(message: &[u8], at: usize) -> Result<u64> {
    let bytes = message.get(at..at + 8).context("a short message")?;
    Ok(u64::from_ne_bytes(bytes.try_into()?))
}

/// Four bytes of a message.
pub(crate) fn word(message: &[u8], at: usize) -> Result<u32> {
    let bytes = message.get(at..at + 4).context("a short message")?;
    Ok(u32::from_ne_bytes(bytes.try_into()?))
}

fn connect(place: &Path) -> Result<File> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let device = device.context("open /dev/fuse")?;
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions",
        device.as_raw_fd()
    );
    let kind = Some("fuse");
    let options = Some(options.as_str());
    mount(Some("volume"), place, kind, MsFlags::empty(), options).context("mount")?;
    Ok(device)
}

fn descriptor(at: GuestAddress, length: usize, flags: u16) -> Result<Vec<u8>> {
    let mut bytes = at.0.to_le_bytes().to_vec();
    bytes.extend(u32::try_from(length)?.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes.extend(1_u16.to_le_bytes());
    Ok(bytes)
}

/// A machine leaves as much room for the data of a file as it reads, and the library fills all of it.
fn room(request: &[u8]) -> Result<usize> {
    if is(request, Opcode::Read) {
        return Ok(HEADER + usize::try_from(word(request, READ_SIZE)?)?);
    }
    Ok(ROOM)
}
